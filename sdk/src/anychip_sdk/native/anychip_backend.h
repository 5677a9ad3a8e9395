/* The C interface of an anychip backend: a device table, an op table, and two optional tables.
 *
 * A shared object that exports `anychip_backend_entry` is a backend:
 *
 *     backend: {name: native, plugin_path: ./libmychip.so}
 *
 * It depends on nothing but C: neither on Python nor on torch, so one build outlives their releases.
 *
 * Rules that hold everywhere
 * - Every struct starts with `struct_size`. Whoever fills a struct sets it to sizeof of the struct as it was compiled;
 *   the reader takes what both sides know and treats the rest as zero. Fields are only ever added, and only at the
 *   end. Tensors, scalars and needs have no size because they never change. ANYCHIP_ABI_VERSION changes when that is
 *   not enough; the first two fields of anychip_backend_t never change.
 * - A slot that is marked (optional) may be NULL; what happens then stands beside it. Every other slot is required.
 * - A function returns a status. Anything but ANYCHIP_OK is an error, and `last_error` then says what and why.
 * - Text is UTF-8 and stays valid as long as the library is loaded.
 * - Bytes are the unit of memory, seconds of time, elements of strides.
 * - Functions may be called from several threads at once, also on one device. A stream, an event and a pool are used
 *   by one thread at a time.
 *
 * This version serves devices whose memory the host can address (ANYCHIP_DEVICE_HOST_MEMORY). A device with memory of
 * its own needs a Python package that says how torch reaches it.
 */
#ifndef ANYCHIP_BACKEND_H
#define ANYCHIP_BACKEND_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANYCHIP_ABI_VERSION 1u
#define ANYCHIP_MAX_DIMS 6

#if defined(_WIN32)
#define ANYCHIP_EXPORT __declspec(dllexport)
#else
#define ANYCHIP_EXPORT __attribute__((visibility("default")))
#endif

/* Status of a call. */
#define ANYCHIP_OK 0
#define ANYCHIP_ERROR 1         /* it failed */
#define ANYCHIP_OUT_OF_MEMORY 2 /* not enough memory, or not enough free pages; nothing was taken */
#define ANYCHIP_INVALID 3       /* the caller broke the rules; nothing was changed */

/* Element types; a set of them is a mask with bit (1u << type). */
#define ANYCHIP_FLOAT32 0
#define ANYCHIP_FLOAT64 1
#define ANYCHIP_FLOAT16 2
#define ANYCHIP_BFLOAT16 3
#define ANYCHIP_INT8 4
#define ANYCHIP_UINT8 5
#define ANYCHIP_INT16 6
#define ANYCHIP_INT32 7
#define ANYCHIP_INT64 8
#define ANYCHIP_BOOL 9

/* ---- Device ------------------------------------------------------------------------------------------------------ */

#define ANYCHIP_DEVICE_HOST_MEMORY 1u     /* the host reads and writes what `alloc` gives; required in this version */
#define ANYCHIP_DEVICE_ASYNC_STREAMS 2u   /* copies on a stream return before they are done */

typedef struct anychip_device anychip_device_t; /* an opened device */
typedef struct anychip_stream anychip_stream_t;
typedef struct anychip_event anychip_event_t;

/* One device as `describe` finds it. The host sets struct_size and zeroes the rest. */
typedef struct anychip_device_info {
  uint32_t struct_size;
  uint32_t flags;          /* ANYCHIP_DEVICE_... */
  uint64_t bytes_total;
  uint64_t bytes_free;     /* at most bytes_total */
  uint32_t dtypes;         /* mask: what the device computes in */
  int32_t preferred_dtype; /* one of them: taken where the checkpoint's own is not among them */
  const char* product;     /* what a person calls it */
  const char* driver;      /* (optional) versions; NULL: there is none */
  const char* runtime;     /* (optional) */
  const char* firmware;    /* (optional) */
} anychip_device_info_t;

/* What the recipe says about the device. */
typedef struct anychip_config {
  uint32_t struct_size;
  int32_t threads; /* host threads that kernels may use; 0: your choice */
  int32_t emulate; /* 0: a shared object has no emulator beside it */
  uint32_t option_count;
  const char* const* option_names;
  const char* const* option_values;
} anychip_config_t;

/* Which way a copy goes. Devices with ANYCHIP_DEVICE_HOST_MEMORY are only ever given ANYCHIP_COPY_ANY. */
#define ANYCHIP_COPY_ANY 0
#define ANYCHIP_COPY_HOST_TO_DEVICE 1
#define ANYCHIP_COPY_DEVICE_TO_HOST 2
#define ANYCHIP_COPY_ON_DEVICE 3

typedef struct anychip_device_table {
  uint32_t struct_size;
  uint32_t reserved;

  /* How many devices are present now; 0 where there is none, which is no error. May be called before `init`. */
  int32_t (*device_count)(int32_t* count);
  int32_t (*describe)(int32_t index, anychip_device_info_t* info);

  /* Open device `index`. `destroy` closes it and releases everything that was allocated on it. A device may be opened
   * again afterwards, and several times at once. */
  int32_t (*init)(int32_t index, const anychip_config_t* config, anychip_device_t** device);
  int32_t (*destroy)(anychip_device_t* device);

  /* Total and free bytes now; what `alloc` gave out is not free. */
  int32_t (*memory)(anychip_device_t* device, uint64_t* bytes_total, uint64_t* bytes_free);

  /* Zeroed memory, aligned to `alignment` bytes (a power of two). Zero bytes may give any address.
   * ANYCHIP_OUT_OF_MEMORY: there is not enough. */
  int32_t (*alloc)(anychip_device_t* device, uint64_t bytes, uint64_t alignment, void** address);
  /* Work queued on a stream may still use it: do not hand it out again before that is done.
   * ANYCHIP_INVALID: `address` was not given out by this device, or was given back already. */
  int32_t (*free)(anychip_device_t* device, void* address);

  /* Copy bytes; the areas do not overlap. stream NULL: done on return. Otherwise in the stream's order. */
  int32_t (*copy)(anychip_device_t* device, void* dst, const void* src, uint64_t bytes, int32_t kind,
                  anychip_stream_t* stream);

  /* Wait for one stream, or for all of the device's (stream NULL). Reports errors of earlier work at the latest. */
  int32_t (*synchronize)(anychip_device_t* device, anychip_stream_t* stream);

  /* What the last call of this thread that failed has to say; NULL or "": nothing. */
  const char* (*last_error)(void);

  /* (optional, both or none) Queues of work. Default: everything runs at once and in order.
   * A lower priority number runs first. `destroy_stream` waits for the stream's work. */
  int32_t (*create_stream)(anychip_device_t* device, int32_t priority, anychip_stream_t** stream);
  int32_t (*destroy_stream)(anychip_device_t* device, anychip_stream_t* stream);

  /* (optional, all or none) Points in a stream. Default: the host waits for the stream where an event is recorded.
   * `wait_event` lets later work of the stream wait without blocking the host; `query_event` never blocks. */
  int32_t (*record_event)(anychip_device_t* device, anychip_stream_t* stream, anychip_event_t** event);
  int32_t (*wait_event)(anychip_device_t* device, anychip_stream_t* stream, anychip_event_t* event);
  int32_t (*query_event)(anychip_device_t* device, anychip_event_t* event, int32_t* is_done);
  int32_t (*synchronize_event)(anychip_device_t* device, anychip_event_t* event);
  int32_t (*elapsed)(anychip_device_t* device, anychip_event_t* since, anychip_event_t* until, double* seconds);
  int32_t (*destroy_event)(anychip_device_t* device, anychip_event_t* event);

  /* (optional) Keep a stream busy for about that long. Default: refused. Required with ANYCHIP_DEVICE_ASYNC_STREAMS,
   * which the conformance suite proves with it. */
  int32_t (*delay)(anychip_device_t* device, anychip_stream_t* stream, double seconds);

  /* (optional) Your own library's handle of the device, for programs that link to it. Default: none. */
  void* (*handle)(anychip_device_t* device);
} anychip_device_table_t;

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

#define ANYCHIP_TENSOR_PREPARED 1u /* `data` is what `prepare` wrote; dtype and shape are the weight's, strides are 0 */

/* Element [i0, i1, ...] lies at (char*)data + byte_offset + itemsize * (i0 * strides[0] + i1 * strides[1] + ...).
 * An argument that is not given has ndim -1 and data NULL. */
typedef struct anychip_tensor {
  void* data;
  uint64_t byte_offset;
  int32_t dtype;
  int32_t ndim;
  uint32_t flags; /* ANYCHIP_TENSOR_... */
  uint32_t reserved;
  int64_t shape[ANYCHIP_MAX_DIMS];
  int64_t strides[ANYCHIP_MAX_DIMS]; /* in elements */
} anychip_tensor_t;

#define ANYCHIP_SCALAR_NONE 0 /* not given */
#define ANYCHIP_SCALAR_INT 1
#define ANYCHIP_SCALAR_FLOAT 2

typedef struct anychip_scalar {
  int32_t kind; /* ANYCHIP_SCALAR_... */
  int32_t reserved;
  union {
    int64_t as_int;
    double as_float;
  } value;
} anychip_scalar_t;

#define ANYCHIP_STATE_PAGED 0 /* an entry per token, in pages */
#define ANYCHIP_STATE_SLOT 1  /* an entry per sequence, which each step replaces */

/* Where a step's entries of one group of states lie. Groups may have tables of their own. */
typedef struct anychip_step_group {
  int32_t kind;              /* ANYCHIP_STATE_... */
  int32_t pages_max;         /* columns of page_table; 0 for slots */
  const int32_t* page_table; /* [rows, pages_max]; NULL for slots */
  const int64_t* slots;      /* paged: [tokens], page * page_size + offset of each token's entry; slot: [rows] */
} anychip_step_group_t;

/* Everything that a forward needs besides weights and states; the rows are sequences.
 * The query tokens of row r are query_start[r] .. query_start[r+1]-1 and are the last ones of the sequence: token j of
 * them stands at position context_lens[r] - query_lens_host[r] + j. In a paged group position p lies in slot
 * page_table[r * pages_max + p / page_size] * page_size + p % page_size. An op's plain argument `group` says which of
 * the groups its states belong to. Where a step brings embeddings of its own, the host answers `embedding` with them and
 * calls no kernel of it. */
typedef struct anychip_step {
  uint32_t struct_size;
  int32_t rows;
  int32_t tokens;
  int32_t logits; /* tokens whose logits are wanted */
  int32_t page_size;
  int32_t decode_rows; /* so many of the first rows have exactly one query token */
  int32_t group_count;
  int32_t reserved;
  const int64_t* token_ids;           /* [tokens] */
  const int64_t* positions;           /* [tokens] */
  const int32_t* query_start;         /* [rows + 1] */
  const int32_t* context_lens;        /* [rows] */
  const int64_t* logit_rows;          /* [logits] */
  const int32_t* query_lens_host;     /* [rows], in host memory */
  const int32_t* context_lens_host;   /* [rows], in host memory */
  const anychip_step_group_t* groups; /* [group_count] */
} anychip_step_t;

/* The arguments of every op. `tensors` holds the op's tensor arguments in the catalogue's order, then its results,
 * except for results that are an argument written in place. `scalars` holds the plain arguments in the catalogue's
 * order. The host reuses blocks: keep no pointer into one after the call. */
typedef struct anychip_args {
  uint32_t struct_size;
  uint32_t tensor_count;
  uint32_t scalar_count;
  uint32_t reserved;
  const anychip_tensor_t* tensors;
  const anychip_scalar_t* scalars;
  const anychip_step_t* step; /* NULL where the op takes none */
  anychip_device_t* device;     /* the one that was opened last; NULL where none is open */
  anychip_stream_t* stream;     /* NULL: the results are there on return, as for every call of this version */
} anychip_args_t;

/* What a kernel needs of a fact (head_dim, page_size, kv_heads ...); where one does not hold, the next kernel of the
 * op is tried, and the reference in the end. */
#define ANYCHIP_NEED_ONE_OF 0
#define ANYCHIP_NEED_AT_MOST 1
#define ANYCHIP_NEED_AT_LEAST 2
#define ANYCHIP_NEED_MULTIPLE_OF 3

typedef struct anychip_need {
  const char* fact;
  int32_t kind;              /* ANYCHIP_NEED_... */
  uint32_t count;            /* of values; 1 unless the kind is ONE_OF */
  const int64_t* numbers;    /* [count] */
  const char* const* texts;  /* (optional) [count] for ONE_OF on a text, instead of numbers; default NULL */
} anychip_need_t;

/* Inputs may be strided views, except in their last dimension. Without it the host copies those first.
 * Arguments that are written in place always come as they are. */
#define ANYCHIP_OP_STRIDED_ROWS 1u
#define ANYCHIP_OP_PREPARES_WEIGHT 2u /* the model's weights go through `prepare` first; plain ones come as well */

typedef struct anychip_op {
  uint32_t struct_size;
  int32_t version;     /* the op's version in the catalogue */
  const char* name;    /* the op's name in the catalogue */
  const char* kernel;  /* tells several kernels of one op apart */
  uint32_t dtypes;     /* mask of the op's own dtype, "T" in its schema */
  uint32_t flags;      /* ANYCHIP_OP_... */
  int32_t (*run)(const anychip_args_t* args);
  const anychip_need_t* needs; /* (optional) default: none */
  uint32_t need_count;
  uint32_t reserved;
} anychip_op_t;

/* Private layouts of weights. Called once for each weight of an op with ANYCHIP_OP_PREPARES_WEIGHT, at load. */
typedef struct anychip_weight_table {
  uint32_t struct_size;
  uint32_t reserved;
  /* Bytes of the prepared form; 0: the weight stays as it is (biases, for example). */
  int32_t (*prepared_bytes)(anychip_device_t* device, const char* op, const char* name, const anychip_tensor_t* weight,
                            uint64_t* bytes);
  /* Write the prepared form to `out`, which has that many bytes of `alloc`. */
  int32_t (*prepare)(anychip_device_t* device, const char* op, const char* name, const anychip_tensor_t* weight,
                     void* out);
} anychip_weight_table_t;

/* ---- Pool of states ---------------------------------------------------------------------------------------------- */

typedef struct anychip_kv_pool anychip_kv_pool_t;

/* One tensor of a state: `shape` is that of a token's entry (paged) or of a sequence's (slot). */
typedef struct anychip_state_tensor {
  const char* name;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[ANYCHIP_MAX_DIMS];
} anychip_state_tensor_t;

/* Modules that keep equal states. */
typedef struct anychip_state_group {
  const char* name;
  int32_t kind; /* ANYCHIP_STATE_... */
  int32_t layers;
  int64_t window; /* a token's entry isn't read once so many later tokens follow; 0: always */
  uint32_t tensor_count;
  uint32_t reserved;
  const anychip_state_tensor_t* tensors; /* [tensor_count] */
} anychip_state_group_t;

typedef struct anychip_kv_spec {
  uint32_t struct_size;
  uint32_t group_count;
  const anychip_state_group_t* groups; /* [group_count] */
  int32_t page_size;                   /* tokens per page */
  int32_t slots;                       /* of sequences; 0 where no group keeps slots */
  int64_t pages_max;                   /* 0: as many as the budget holds, or 1 where no group is paged */
  uint64_t budget_bytes;               /* the most that the pool may take */
} anychip_kv_spec_t;

typedef struct anychip_kv_layout {
  uint32_t struct_size;
  uint32_t alignment;
  int64_t pages;
  uint64_t bytes_per_token; /* over all paged groups and their layers */
  uint64_t bytes_per_slot;  /* over all slot groups and their layers */
} anychip_kv_layout_t;

/* Pages are numbered 0 .. pages-1 and counted by reference; a page number means the same tokens in each paged group.
 * Slots are numbered 0 .. slots-1; the host keeps account of them. All memory is taken in `create`, and is zeroed. */
typedef struct anychip_kv_pool_table {
  uint32_t struct_size;
  uint32_t reserved;
  /* ANYCHIP_OUT_OF_MEMORY: the budget doesn't hold the slots and one page. ANYCHIP_ERROR: a group that the library can't
   * hold; the host shows what `last_error` says, and takes no other pool. */
  int32_t (*create)(anychip_device_t* device, const anychip_kv_spec_t* spec, anychip_kv_layout_t* layout,
                    anychip_kv_pool_t** pool);
  int32_t (*destroy)(anychip_kv_pool_t* pool);
  /* `count` pages with one reference each. ANYCHIP_OUT_OF_MEMORY: fewer are free, and none was taken. */
  int32_t (*alloc)(anychip_kv_pool_t* pool, int64_t count, int64_t* pages);
  /* Drop or add one reference of each. ANYCHIP_INVALID: a page has none; nothing was changed. */
  int32_t (*free)(anychip_kv_pool_t* pool, int64_t count, const int64_t* pages);
  int32_t (*retain)(anychip_kv_pool_t* pool, int64_t count, const int64_t* pages);
  int32_t (*refcount)(anychip_kv_pool_t* pool, int64_t page, int64_t* count);
  /* Copy the content of src[i] to dst[i] in all paged groups and layers. */
  int32_t (*copy_pages)(anychip_kv_pool_t* pool, int64_t count, const int64_t* src, const int64_t* dst);
  /* Where a layer's states lie: a tensor for each of the group's, [pages, page_size, shape...] or [slots, shape...],
   * strided as you like. */
  int32_t (*tensors)(anychip_kv_pool_t* pool, int32_t group, int32_t layer, anychip_tensor_t* out);
  int32_t (*stats)(anychip_kv_pool_t* pool, int64_t* pages_free, int64_t* pages_shared);
  /* (optional, both or none) Copy slot src[i] to slot dst[i], and fill slots with zeros, in all slot groups and layers.
   * `dst` are all different and none of `src`. Default: the host does it on what `tensors` gave. */
  int32_t (*copy_slots)(anychip_kv_pool_t* pool, int64_t count, const int64_t* src, const int64_t* dst);
  int32_t (*clear_slots)(anychip_kv_pool_t* pool, int64_t count, const int64_t* slots);
} anychip_kv_pool_table_t;

/* ---- Entry ------------------------------------------------------------------------------------------------------- */

typedef struct anychip_backend {
  uint32_t struct_size;
  uint32_t abi_version; /* ANYCHIP_ABI_VERSION as you were compiled */
  const char* name;     /* of the backend, in lower case */
  const char* vendor;
  const char* version;  /* of this library, e.g. "1.2.0" */
  const char* absence;  /* (optional) why there may be no device, and what to install. Default NULL */
  const anychip_device_table_t* device;
  const anychip_op_t* ops; /* (optional) [op_count]. Default: every op is the reference's */
  uint32_t op_count;
  uint32_t reserved;
  const anychip_weight_table_t* weights; /* (optional) Default: weights stay as they are */
  const anychip_kv_pool_table_t* kv_pool; /* (optional) Default: the host's pool in memory of `alloc` */
} anychip_backend_t;

/* The one symbol. Returns a table that lives as long as the library. A library that cannot serve `host_abi_version`
 * still returns its table: the host reads abi_version and says what it found. */
ANYCHIP_EXPORT const anychip_backend_t* anychip_backend_entry(uint32_t host_abi_version);

#ifdef __cplusplus
}
#endif

#endif
