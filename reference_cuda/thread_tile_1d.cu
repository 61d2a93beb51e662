// Rung 4: one thread computes a column of TM outputs.
//
// What a thread owns changes. It reads an element of Bs once and multiplies it with TM elements of As: TM + 1 shared
// loads for TM FMAs, where one output a thread took two for one. The block shrinks to 512 threads and its tile of C
// grows to 64 x 64, which halves the loads from global memory too.
// Loads per output: 2K/64 from global memory, K (1 + 1/TM) from shared memory. 16 FLOP/byte.
// FMA per shared load, as written: TM / (TM + 1) = 0.89, from 0.5.
// Twin: triton_sgemm/ladder/thread_tile_1d.py.
// M and N must be multiples of 64, and K of 8: nothing checks the bounds.
template <const int BM, const int BN, const int BK, const int TM>
__global__ void sgemm_thread_tile_1d(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  // block position within the grid
  const int cRow = blockIdx.x;
  const int cCol = blockIdx.y;

  // the two tiles this block stages in shared memory
  __shared__ float As[BM * BK];
  __shared__ float Bs[BK * BN];

  // first of the thread's outputs within the block's tile of C: the lanes of a warp take neighbouring columns
  const int threadRow = threadIdx.x / BN * TM;
  const int threadCol = threadIdx.x % BN;

  // move each pointer to the top left corner of this block's tile
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;

  float acc[TM] = {};
  for (int bkIdx = 0; bkIdx < K; bkIdx += BK) {
    // one element of each tile per thread, GMEM -> SMEM
    const int i = threadIdx.x;
    As[i] = A[i / BK * K + i % BK];
    Bs[i] = B[i / BN * N + i % BN];

    // block all threads until the shared memory is fully populated
    __syncthreads();

    // advance A right by one tile, B down by one tile
    A += BK;
    B += BK * N;

    // partial dot products over the cached tile: one element of Bs serves TM of them
    for (int k = 0; k < BK; ++k) {
      const float b = Bs[k * BN + threadCol];
      for (int i = 0; i < TM; ++i) {
        acc[i] += As[(threadRow + i) * BK + k] * b;
      }
    }

    // sync again at the end, so a fast thread cannot overwrite the tile
    // a slow thread is still reading
    __syncthreads();
  }

  for (int i = 0; i < TM; ++i) {
    const int at = (threadRow + i) * N + threadCol;
    C[at] = alpha * acc[i] + beta * C[at];
  }
}
