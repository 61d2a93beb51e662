// Rung 5: one thread computes TM x TN outputs.
//
// What a thread reads from shared memory grows with the rim of its tile and what it multiplies with the area: TM
// elements of As and TN of Bs go to registers, and their outer product is TM * TN FMAs. The tile of C grows to
// 128 x 128, so that a block of 256 threads has work for 64 outputs each.
// Loads per output: 2K/128 from global memory, K (1/TM + 1/TN) from shared memory. 32 FLOP/byte.
// FMA per shared load, as written: TM * TN / (TM + TN) = 4, the balance of an SM (128 FMA lanes, 32 banks).
// Twin: triton_sgemm/ladder/thread_tile_2d.py.
// M and N must be multiples of 128, and K of 8: nothing checks the bounds.
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void sgemm_thread_tile_2d(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  constexpr int THREADS = (BM / TM) * (BN / TN);

  // block position within the grid
  const int cRow = blockIdx.x;
  const int cCol = blockIdx.y;

  // the two tiles this block stages in shared memory
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];

  // first of the thread's outputs within the block's tile of C
  const int threadRow = threadIdx.x / (BN / TN) * TM;
  const int threadCol = threadIdx.x % (BN / TN) * TN;

  // move each pointer to the top left corner of this block's tile
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;

  float acc[TM * TN] = {};
  for (int bkIdx = 0; bkIdx < K; bkIdx += BK) {
    // several elements of each tile per thread, THREADS apart, GMEM -> SMEM
    for (int first = 0; first < BM * BK; first += THREADS) {
      const int i = first + threadIdx.x;
      As[i] = A[i / BK * K + i % BK];
    }
    for (int first = 0; first < BK * BN; first += THREADS) {
      const int i = first + threadIdx.x;
      Bs[i] = B[i / BN * N + i % BN];
    }

    // block all threads until the shared memory is fully populated
    __syncthreads();

    // advance A right by one tile, B down by one tile
    A += BK;
    B += BK * N;

    // partial dot products over the cached tile: at each k an outer product in registers
    for (int k = 0; k < BK; ++k) {
      float a[TM], b[TN];
      for (int i = 0; i < TM; ++i) {
        a[i] = As[(threadRow + i) * BK + k];
      }
      for (int j = 0; j < TN; ++j) {
        b[j] = Bs[k * BN + threadCol + j];
      }
      for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) {
          acc[i * TN + j] += a[i] * b[j];
        }
      }
    }

    // sync again at the end, so a fast thread cannot overwrite the tile
    // a slow thread is still reading
    __syncthreads();
  }

  for (int i = 0; i < TM; ++i) {
    for (int j = 0; j < TN; ++j) {
      const int at = (threadRow + i) * N + threadCol + j;
      C[at] = alpha * acc[i * TN + j] + beta * C[at];
    }
  }
}
