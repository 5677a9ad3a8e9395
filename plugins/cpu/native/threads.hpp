// Running one function on several threads of the process's own OpenMP team. Knows no kernel.
#pragma once

namespace anychip {

// GOMP_parallel's signature; every OpenMP runtime has it
using ParallelFunction = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// NULL: everything runs on the calling thread
void set_parallel(ParallelFunction parallel);
bool has_parallel();
void parallel(void (*function)(void*), void* data, unsigned threads);

}  // namespace anychip
