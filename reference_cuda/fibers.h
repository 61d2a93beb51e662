// Enough of CUDA for the host compiler to run the kernels of this folder on the CPU, unchanged.
//
// One block runs at a time and its threads are fibers, so `__syncthreads()` is a switch back to the
// scheduler. From one barrier to the next the threads run one after another, in a fresh random
// order: the interleaving in which a missing barrier shows most. Before every block the shared
// memory is filled with NaN, so reading what nobody wrote shows too. Asynchronous copies are done as
// late as the language allows, so a missing wait shows as well.
//
// Left out: warps run in no lockstep (no shuffles), `extern __shared__`, atomics, PTX (`FIBERS_H` says so).
// Include it once, in a library of its own whose symbols are hidden.
#ifndef FIBERS_H
#define FIBERS_H

#include <link.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

// the language

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// thread_local puts every tile, and nothing else, into one piece of memory: see `shared_memory`
#define __shared__ static thread_local
#define __syncthreads() fibers::barrier(__LINE__)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) float2 {
  float x, y;
};

struct alignas(16) float4 {
  float x, y, z, w;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
extern "C" float fmaf(float a, float b, float c) noexcept;  // <cmath> and <random> are slow to compile
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace fibers {

// threads

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr int ENDED = 0;  // no source line has this number

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
  unsigned group;
};

struct Fiber {
  ucontext_t context;
  int line;                  // of the barrier where it waits, or ENDED
  std::vector<Copy> copies;  // started and not yet waited for, oldest first
  unsigned groups;           // committed
};

inline ucontext_t scheduler;
inline std::vector<Fiber> threads;  // of the block
inline std::vector<char *> stacks;  // kept from block to block, and from launch to launch
inline Fiber *current;
inline void (*kernel)(const void *arguments);
inline const void *arguments;

inline void barrier(int line) {
  current->line = line;
  swapcontext(&current->context, &scheduler);
}

inline void thread_main() {
  kernel(arguments);
  current->line = ENDED;
}

inline void start(Fiber &fiber, char *stack) {
  fiber.copies.clear();
  fiber.groups = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, thread_main, 0);
}

inline void resume(Fiber &fiber) {
  current = &fiber;
  swapcontext(&scheduler, &fiber.context);
}

// asynchronous copies

// Does the copies of all groups that this thread has committed but the last `pending`.
inline void wait_group(unsigned pending) {
  auto &copies = current->copies;
  auto copy = copies.begin();
  for (; copy != copies.end() && copy->group + pending < current->groups; ++copy) {
    memcpy(copy->to, copy->from, copy->bytes);
  }
  copies.erase(copies.begin(), copy);
}

// shared memory

struct Span {
  void *begin;
  size_t bytes;
};

inline thread_local volatile char touched;

// This library's thread_local variables: all its `__shared__` ones, and `touched`.
inline Span shared_memory() {
  touched = 1;  // until one of them is used, they have no address
  Span span{};
  dl_iterate_phdr(
      [](dl_phdr_info *library, size_t, void *found) {
        bool ours = false;
        size_t bytes = 0;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto &segment = library->dlpi_phdr[i];
          const uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
          const uintptr_t offset = reinterpret_cast<uintptr_t>(&scheduler) - begin;
          if (segment.p_type == PT_LOAD) ours |= offset < segment.p_memsz;
          if (segment.p_type == PT_TLS) bytes = segment.p_memsz;
        }
        if (ours) *static_cast<Span *>(found) = {library->dlpi_tls_data, bytes};
        return int(ours);
      },
      &span);
  return span;
}

// launch

inline dim3 place(unsigned index, dim3 extent) {
  return {index % extent.x, index / extent.x % extent.y, index / extent.x / extent.y};
}

inline std::vector<unsigned> count_to(size_t size) {
  std::vector<unsigned> indices;
  while (indices.size() < size) indices.push_back(indices.size());
  return indices;
}

// The same order for the same seed, whatever the standard library.
struct Shuffle {
  uint64_t state;

  void operator()(std::vector<unsigned> &order) {
    for (size_t left = order.size(); left > 1; --left) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[left - 1], order[(state >> 33) % left]);
    }
  }
};

// Returns null, or what went wrong.
inline const char *run_block(Shuffle &shuffle) {
  auto order = count_to(threads.size());
  for (unsigned thread : order) start(threads[thread], stacks[thread]);

  for (;;) {
    shuffle(order);
    for (unsigned thread : order) {
      threadIdx = place(thread, blockDim);
      resume(threads[thread]);
    }

    int line = ENDED;
    for (const Fiber &fiber : threads) line = fiber.line > line ? fiber.line : line;
    size_t there = 0;
    for (const Fiber &fiber : threads) there += fiber.line == line;
    if (there < threads.size()) {
      static char message[200];
      snprintf(message, sizeof message,
               "__syncthreads() was not reached by every thread of block (%u, %u): "
               "%zu of %zu wait at line %d",
               blockIdx.x, blockIdx.y, there, threads.size(), line);
      return message;
    }
    if (line == ENDED) return nullptr;
  }
}

// Runs `body` once for every thread of the grid. Returns null, or what went wrong.
template <class Body>
const char *run(dim3 grid, dim3 block, uint64_t seed, const Body &body) {
  gridDim = grid;
  blockDim = block;
  kernel = [](const void *arguments) { (*static_cast<const Body *>(arguments))(); };
  arguments = &body;
  threads.resize(size_t(block.x) * block.y * block.z);
  while (stacks.size() < threads.size()) stacks.push_back(new char[STACK_BYTES]);
  const Span shared = shared_memory();
  Shuffle shuffle{seed};

  auto order = count_to(size_t(grid.x) * grid.y * grid.z);
  shuffle(order);
  for (unsigned index : order) {
    blockIdx = place(index, grid);
    memset(shared.begin, 0xFF, shared.bytes);
    if (const char *error = run_block(shuffle)) return error;
  }
  return nullptr;
}

}  // namespace fibers

// cp.async, under the names that the kernels give it

template <class T>
inline void copy_async(T *shared, const T *global) {
  fibers::current->copies.push_back({shared, global, sizeof(T), fibers::current->groups});
}

inline void commit_group() { ++fibers::current->groups; }

template <const int PENDING>
inline void wait_group() {
  fibers::wait_group(PENDING);
}

#endif
