// Rung 8: a ring of tiles in shared memory, filled by asynchronous copies; fragments read one k ahead.
//
// Nobody stands and waits for memory any more. While the block multiplies one tile, cp.async brings the next from
// global to shared memory, past the registers, and one barrier a tile is enough. While the FMAs of one k run, the
// fragments of the next are read into a second set of registers. What else changed leaves the issue slots to the FMAs
// (percent of cuBLAS as measured on an H200, M = N = K = 4096; docs/worklog/005-cuda-ring.md):
// * A block owns 128 x 256 outputs and a thread 16 x 8: 128 FMAs for 6 shared loads.
// * Lanes 2i and 2i + 1 stand side by side, lanes i and i + 2 below each other: neighbours share what they read of A,
//   the others what they read of B, and a float4 load takes 2 passes through shared memory where it took up to 4.
//   97.9 with the lanes of rung 7, 100.6 with these.
// * A thread copies four elements of a row of A, one address for all of them, where it copied one of each of four
//   rows. 100.6 before, 104.0 so. The padding of As puts what a warp copies at a time, 16 rows x 2, in 32 banks.
// * The outer product goes right and left in turns. Of its two factors, an FMA then takes one from the reuse cache,
//   where the FMA before left it: the two banks of the registers give one operand each a cycle. 102.0 without.
// Loads per output: K (1/128 + 1/256) = 2K/171 from global memory. 43 FLOP/byte.
// FMA per shared load, as written: 5.3 an element, 21 an instruction; 32 an element that a warp asks for, from 21.
// Twin: triton_sgemm/algorithms/fma.py.
// M must be a multiple of 128, N of 256 and K of 16: nothing checks the bounds. A, B and C start at multiples of 16
// bytes.
#ifndef FIBERS_H  // which has its own, for the CPU
template <class T>
__device__ __forceinline__ void copy_async(T *shared, const T *global) {
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(sizeof(T)));
}

__device__ __forceinline__ void commit_group() { asm volatile("cp.async.commit_group;"); }

// waits for all groups of copies that this thread has committed but the last PENDING
template <const int PENDING>
__device__ __forceinline__ void wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

template <const int BM, const int BN, const int BK, const int TM, const int TN, const int STAGES>
__global__ void __launch_bounds__((BM / TM) * (BN / TN), 1)
sgemm_async_ring(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  constexpr int THREADS = (BM / TM) * (BN / TN);
  constexpr int LANES_M = 4, LANES_N = 8;              // how the lanes of a warp stand
  constexpr int WM = LANES_M * TM, WN = LANES_N * TN;  // the tile of C that they own
  constexpr int LDA = BM + 4;                          // a row of As and its padding
  static_assert(BM * BK == THREADS * 4, "a thread copies four elements of A's tile");

  // block position within the grid
  const int cRow = blockIdx.x;
  const int cCol = blockIdx.y;

  // the ring: STAGES pairs of tiles, A's as BK rows of BM elements
  __shared__ __align__(16) float As[STAGES * BK * LDA];
  __shared__ __align__(16) float Bs[STAGES * BK * BN];

  // first of the thread's outputs within the block's tile of C: its warp's corner, then its place in the warp
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int threadRow = warp / (BN / WN) * WM + lane / 2 % LANES_M * 4;
  const int threadCol = warp % (BN / WN) * WN + (lane / (2 * LANES_M) * 2 + lane % 2) * 4;

  // the first elements that this thread copies: of A's tile it takes four of a row, of B's a warp takes rows
  const int copyRow = threadIdx.x / (BK / 4);
  const int copyCol = threadIdx.x % (BK / 4) * 4;

  // the first tile is always copied; where K is 0 it comes from C, and nobody multiplies it
  if (K == 0) A = B = C;

  // move each pointer to the top left corner of this block's tile, A and B on to this thread's copies
  A += (cRow * BM + copyRow) * K + copyCol;
  B += warp * N + cCol * BN + lane * 4;
  C += cRow * BM * N + cCol * BN;

  // starts to copy a tile of A and of B, GMEM -> SMEM, if there is one, and advances A right by one tile, B down by one
  const auto copy_tiles = [&](int stage, bool there_is_one) {
    if (there_is_one) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        copy_async(&As[(stage * BK + copyCol + k) * LDA + copyRow], &A[k]);
      }
#pragma unroll
      for (int k = 0; k < BK; k += THREADS / 32) {
#pragma unroll
        for (int j = 0; j < BN; j += 32 * 4) {
          copy_async((float4 *)&Bs[(stage * BK + warp + k) * BN + lane * 4 + j], (const float4 *)&B[k * N + j]);
        }
      }
    }
    commit_group();
    A += BK;
    B += BK * N;
  };

  // two sets of fragments: one multiplied, one on its way
  __align__(16) float a[2][TM], b[2][TN];
  const auto read_fragments = [&](int stage, int k) {
#pragma unroll
    for (int i = 0; i < TM; i += 4) {
      *(float4 *)&a[k % 2][i] = *(const float4 *)&As[(stage * BK + k) * LDA + threadRow + i * LANES_M];
    }
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      *(float4 *)&b[k % 2][j] = *(const float4 *)&Bs[(stage * BK + k) * BN + threadCol + j * LANES_N];
    }
  };

  // fill the ring but for one stage
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    copy_tiles(s, s == 0 || s * BK < K);
  }
  wait_group<STAGES - 2>();
  __syncthreads();
  read_fragments(0, 0);

  float acc[TM * TN] = {};
  for (int bkIdx = 0; bkIdx < K; bkIdx += STAGES * BK) {
    // once around the ring: unrolled, so that a stage's place in shared memory is a constant
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
      // the stage that was read last gets the tile that is STAGES - 1 ahead
      copy_tiles((stage + STAGES - 1) % STAGES, bkIdx + (stage + STAGES - 1) * BK < K);

      // partial dot products over the cached tile: at each k an outer product in registers
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        if (k < BK - 1) {
          read_fragments(stage, k + 1);
        } else {
          // block all threads until everyone's copies of the next tile are there, and nobody needs this one
          wait_group<STAGES - 2>();
          __syncthreads();
          read_fragments((stage + 1) % STAGES, 0);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int n = 0; n < TN; ++n) {
            const int turn = i % 2 ? TN - 1 - n : n;               // right and left in turns, and each time
            const int j = turn % (TN / 2) * 2 + turn / (TN / 2);  // the columns of one bank, then of the other
            acc[i * TN + j] += a[k % 2][i] * b[k % 2][j];
          }
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      float4 *at = (float4 *)&C[(threadRow + i / 4 * 4 * LANES_M + i % 4) * N + threadCol + j * LANES_N];
      const float4 c = beta == 0.0f ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *at;  // then C is not read
      *at = make_float4(alpha * acc[i * TN + j + 0] + beta * c.x,
                        alpha * acc[i * TN + j + 1] + beta * c.y,
                        alpha * acc[i * TN + j + 2] + beta * c.z,
                        alpha * acc[i * TN + j + 3] + beta * c.w);
    }
  }
}
