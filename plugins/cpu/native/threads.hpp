// Running one function on several threads of the process's own OpenMP team. Knows no kernel.
#pragma once

namespace anychip {

// Entries that every OpenMP runtime has.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel
  int (*thread_num)();                                                                      // omp_get_thread_num
  int (*num_threads)();                                                                     // omp_get_num_threads
};

// NULLs: everything runs on the calling thread
void set_openmp(const OpenMp& runtime);
void parallel(void (*function)(void*), void* data, unsigned threads);

}  // namespace anychip
