// Rung 1: one thread computes one output, and x walks the rows.
//
// Neighbouring lanes of a warp take neighbouring rows, so at each k they read 32 rows of A
// (32 addresses lda apart: 32 transactions) and one element of B (a broadcast), and they
// write C with stride ldc.
// Loads per output: 2K from global memory. 0.25 FLOP/byte.
// Twin: triton_sgemm/ladder/naive.py. Any M, N, K.
template <const int BLOCKSIZE>
__global__ void sgemm_naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
  // position within C: the lane index walks down a column
  const int row = blockIdx.x * BLOCKSIZE + (threadIdx.x % BLOCKSIZE);
  const int col = blockIdx.y * BLOCKSIZE + (threadIdx.x / BLOCKSIZE);

  if (row < M && col < N) {
    float acc = 0.0f;
    for (int k = 0; k < K; ++k) {
      acc += A[row * K + k] * B[k * N + col];
    }

    C[row * N + col] = alpha * acc + beta * C[row * N + col];
  }
}
