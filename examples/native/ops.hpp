// The tables that the backend is put together from. Knows names only.
#pragma once

#include <cstdint>
#include <string>

#include "anychip_backend.h"

extern const anychip_op_t kOps[];
extern const std::uint32_t kOpCount;
extern const anychip_device_table_t kDevice;
extern const anychip_weight_table_t kWeights;
extern const anychip_kv_pool_table_t kPool;

// Gives `status` back, and keeps the reason for `last_error`.
int32_t failed(int32_t status, const std::string& why);

// The ops, each for float32 and bfloat16.
int32_t add(const anychip_args_t* args);
int32_t rms_norm(const anychip_args_t* args);
int32_t add_rms_norm(const anychip_args_t* args);
int32_t silu_mul(const anychip_args_t* args);
int32_t linear(const anychip_args_t* args);
int32_t lm_head(const anychip_args_t* args);
int32_t embedding(const anychip_args_t* args);
int32_t select_rows(const anychip_args_t* args);
int32_t rope(const anychip_args_t* args);
int32_t qk_norm_rope(const anychip_args_t* args);
int32_t kv_write(const anychip_args_t* args);
int32_t paged_attention(const anychip_args_t* args);
int32_t argmax(const anychip_args_t* args);
