// Rung 2: one thread computes one output, and x walks the columns.
//
// Only the two lines that place a thread changed. Neighbouring lanes now take neighbouring
// columns: at each k a warp reads 32 adjacent elements of B (128 bytes, 4 sectors) and one
// element of A (a broadcast), and it writes 128 adjacent bytes of C.
// Loads per output: still 2K from global memory. Still 0.25 FLOP/byte.
// Twin: triton_sgemm/ladder/coalesced.py. Any M, N, K.
template <const int BLOCKSIZE>
__global__ void sgemm_coalesced(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  // position within C: the lane index walks along a row
  const int row = blockIdx.x * BLOCKSIZE + (threadIdx.x / BLOCKSIZE);
  const int col = blockIdx.y * BLOCKSIZE + (threadIdx.x % BLOCKSIZE);

  if (row < M && col < N) {
    float acc = 0.0f;
    for (int k = 0; k < K; ++k) {
      acc += A[row * K + k] * B[k * N + col];
    }

    C[row * N + col] = alpha * acc + beta * C[row * N + col];
  }
}
