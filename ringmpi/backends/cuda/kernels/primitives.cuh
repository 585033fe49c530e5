// What needs an instruction of its own. The only file with assembly: kernels are plain C++ on top of these names, so
// that g++ can build them too, on a device made of fibers (tests/cuda/emulator/emulator.h gives the same names there).
//
// Lanes of a warp are numbered by g = lane / 4 and t = lane % 4. Fragments (PTX ISA, "Matrix Fragments"):
//   product of 16 bit, m16n8k16   A: rows g, g + 8; columns 2t, 2t + 1, 2t + 8, 2t + 9     B: rows likewise; column g
//   product of 64 bit, m8n8k4     A: row g; column t                                       B: row t; column g
//   sums of both                  row g (and g + 8); columns 2t, 2t + 1
#pragma once

namespace ringmpi {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

// 16-bit numbers as they lie in memory; arithmetic is in float.
struct Float16 { u16 bits; };
struct BFloat16 { u16 bits; };

template <class T> struct SumOf { using type = float; };
template <> struct SumOf<double> { using type = double; };
template <class T> using Sum = typename SumOf<T>::type;

}  // namespace ringmpi

#ifndef __CUDACC__
#define __grid_constant__
#include "emulator.h"
#else

#define DEVICE __device__ __forceinline__
#define KERNEL __global__

namespace ringmpi {

DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}
DEVICE int thread_index() { return int(threadIdx.x); }
DEVICE int block_index() { return int(blockIdx.x); }
DEVICE void barrier() { __syncthreads(); }
DEVICE int barrier_or(int yes) { return __syncthreads_or(yes); }
// Lanes of a warp wait for each other. What is loaded after it is not loaded before: compilers else begin with more than
// there are registers for.
DEVICE void warp_barrier() { __syncwarp(); }

// The same number, but nothing computed from it is known before: so it need not wait in registers from tile to tile.
DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

DEVICE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory, or 16 zeros; they land at some time before copies_wait returns.
DEVICE void copy16_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Four 8 x 8 matrices of 16 bit; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// Adds A B to the rows g (top) and g + 8 (bottom) of the sums.
template <class T> DEVICE void multiply_16(float (&top)[2], float (&bottom)[2], const u32 (&a)[4], u32 b0, u32 b1);
template <>
DEVICE void multiply_16<Float16>(float (&top)[2], float (&bottom)[2], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(top[0]), "+f"(top[1]), "+f"(bottom[0]), "+f"(bottom[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
DEVICE void multiply_16<BFloat16>(float (&top)[2], float (&bottom)[2], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(top[0]), "+f"(top[1]), "+f"(bottom[0]), "+f"(bottom[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply_64(double (&sum)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum[0]), "+d"(sum[1])
      : "d"(a), "d"(b));
}

template <class A> DEVICE A infinity();
template <> DEVICE float infinity<float>() { return __int_as_float(0x7f800000); }
template <> DEVICE double infinity<double>() { return __longlong_as_double(0x7ff0000000000000ll); }

// What lane (own ^ mask), or lane `lane`, holds. All lanes of the warp take part.
template <class T> DEVICE T exchange(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T> DEVICE T from_lane(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// Two numbers rounded to nearest even, the first in the low half; and back.
template <class T> DEVICE u32 pack(float low, float high);
template <> DEVICE u32 pack<Float16>(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
template <> DEVICE u32 pack<BFloat16>(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
DEVICE float widen(Float16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
DEVICE float widen(BFloat16 x) { return __uint_as_float(u32(x.bits) << 16); }
DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }

// 2^x by the special function unit, 2 ulp; 0 for what is below the normal numbers.
DEVICE float exponential2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE double exponential(double x) { return exp(x); }
DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
DEVICE double hyperbolic_tangent(double x) { return tanh(x); }
DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE float larger(float a, float b) { return fmaxf(a, b); }  // the number where one is NaN
DEVICE double larger(double a, double b) { return fmax(a, b); }
DEVICE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

}  // namespace ringmpi
#endif
