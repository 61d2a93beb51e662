// Rung 7: a warp computes a tile of its own, and its lanes share what they read.
//
// Only the place of a thread's outputs changed. The 32 lanes of a warp stand 4 x 8 and own 32 x 64 outputs, so that at
// each k they want 32 elements of As and 64 of Bs, where lanes that stood 2 x 16 wanted 16 and 128. A lane's outputs
// are quads of 4 x 4, and neighbouring lanes have neighbouring quads: eight lanes read eight adjacent float4 of Bs,
// every bank once, where the float4 of rung 6 lay 32 bytes apart and met half of the banks twice.
// Loads per output: as in rung 6. 32 FLOP/byte.
// FMA per shared load, as written: as in rung 6; for each element that a warp wants 2048/96 = 21, from 2048/144 = 14.
// Twin: triton_sgemm/ladder/warp_tile.py.
// M and N must be multiples of 128, and K of 8: nothing checks the bounds. A, B and C start at multiples of 16 bytes.
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void sgemm_warp_tile(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  constexpr int THREADS = (BM / TM) * (BN / TN);
  constexpr int LANES_M = 4, LANES_N = 8;              // how the lanes of a warp stand
  constexpr int WM = LANES_M * TM, WN = LANES_N * TN;  // the tile of C that they own

  // block position within the grid
  const int cRow = blockIdx.x;
  const int cCol = blockIdx.y;

  // the two tiles this block stages in shared memory: A's as BK rows of BM elements
  __shared__ __align__(16) float As[BK * BM];
  __shared__ __align__(16) float Bs[BK * BN];

  // first of the thread's outputs within the block's tile of C: its warp's corner, then its place in the warp
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int threadRow = warp / (BN / WN) * WM + lane / LANES_N * 4;
  const int threadCol = warp % (BN / WN) * WN + lane % LANES_N * 4;

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
        *(float4 *)&a[i] = *(const float4 *)&As[k * BM + threadRow + i * LANES_M];
      }
      for (int j = 0; j < TN; j += 4) {
        *(float4 *)&b[j] = *(const float4 *)&Bs[k * BN + threadCol + j * LANES_N];
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
      float4 *at = (float4 *)&C[(threadRow + i / 4 * 4 * LANES_M + i % 4) * N + threadCol + j * LANES_N];
      const float4 c = *at;
      *at = make_float4(alpha * acc[i * TN + j + 0] + beta * c.x,
                        alpha * acc[i * TN + j + 1] + beta * c.y,
                        alpha * acc[i * TN + j + 2] + beta * c.z,
                        alpha * acc[i * TN + j + 3] + beta * c.w);
    }
  }
}
