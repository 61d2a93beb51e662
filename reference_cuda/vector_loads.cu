// Rung 6: four elements a load, and A kept K-major in shared memory.
//
// A global load takes a float4. A's tile is transposed on its way, so that the TM elements which a thread needs at one
// k lie side by side: the fragments of A, as those of B, are then read as float4 too.
// Loads per output: the elements of rung 5, in a quarter of the instructions. 32 FLOP/byte.
// FMA per shared load, as written: 4 an element, TM * TN / (TM/4 + TN/4) = 16 an instruction.
// Twin: triton_sgemm/ladder/vector_loads.py.
// M and N must be multiples of 128, and K of 8: nothing checks the bounds. A, B and C start at multiples of 16 bytes.
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void sgemm_vector_loads(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  constexpr int THREADS = (BM / TM) * (BN / TN);

  // block position within the grid
  const int cRow = blockIdx.x;
  const int cCol = blockIdx.y;

  // the two tiles this block stages in shared memory: A's as BK rows of BM elements
  __shared__ __align__(16) float As[BK * BM];
  __shared__ __align__(16) float Bs[BK * BN];

  // first of the thread's outputs within the block's tile of C
  const int threadRow = threadIdx.x / (BN / TN) * TM;
  const int threadCol = threadIdx.x % (BN / TN) * TN;

  // move each pointer to the top left corner of this block's tile
  A += cRow * BM * K;
  B += cCol * BN;
  C += cRow * BM * N + cCol * BN;

  float acc[TM * TN] = {};
  for (int bkIdx = 0; bkIdx < K; bkIdx += BK) {
    // four adjacent elements of each tile per thread, GMEM -> SMEM, those of A to four rows of As
    for (int first = 0; first < BM * BK; first += THREADS * 4) {
      const int i = first + threadIdx.x * 4;
      const float4 v = *(const float4 *)&A[i / BK * K + i % BK];
      As[(i % BK + 0) * BM + i / BK] = v.x;
      As[(i % BK + 1) * BM + i / BK] = v.y;
      As[(i % BK + 2) * BM + i / BK] = v.z;
      As[(i % BK + 3) * BM + i / BK] = v.w;
    }
    for (int first = 0; first < BK * BN; first += THREADS * 4) {
      const int i = first + threadIdx.x * 4;
      *(float4 *)&Bs[i] = *(const float4 *)&B[i / BN * N + i % BN];
    }

    // block all threads until the shared memory is fully populated
    __syncthreads();

    // advance A right by one tile, B down by one tile
    A += BK;
    B += BK * N;

    // partial dot products over the cached tile: at each k an outer product in registers
    for (int k = 0; k < BK; ++k) {
      __align__(16) float a[TM], b[TN];
      for (int i = 0; i < TM; i += 4) {
        *(float4 *)&a[i] = *(const float4 *)&As[k * BM + threadRow + i];
      }
      for (int j = 0; j < TN; j += 4) {
        *(float4 *)&b[j] = *(const float4 *)&Bs[k * BN + threadCol + j];
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
    for (int j = 0; j < TN; j += 4) {
      float4 *at = (float4 *)&C[(threadRow + i) * N + threadCol + j];
      const float4 c = *at;
      *at = make_float4(alpha * acc[i * TN + j + 0] + beta * c.x,
                        alpha * acc[i * TN + j + 1] + beta * c.y,
                        alpha * acc[i * TN + j + 2] + beta * c.z,
                        alpha * acc[i * TN + j + 3] + beta * c.w);
    }
  }
}
