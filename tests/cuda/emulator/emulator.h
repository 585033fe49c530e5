// A device made of fibers, for kernels that are built by g++: the names of primitives.cuh, each with what the hardware
// is documented to do. A block runs on one thread of the system, one fiber a CUDA thread; what a whole warp does at once
// is done by the lane that arrives last, for all.
//
// What ends a launch with a message: lanes of a warp at different collectives, threads at different barriers, nobody able
// to go on, an address out of bounds or not aligned, reading what an asynchronous copy has not brought yet. In a build
// whose loads and stores are watched (watch.cpp) also races in shared memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define __launch_bounds__(...)
#define DEVICE inline __attribute__((always_inline))
#define KERNEL

struct int2 { int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emulator {

// Where in the kernel: the caller of the primitive.
struct Place {
  const char* file;
  int line;
};
#define EMULATOR_PLACE ::emulator::Place place = {__builtin_FILE(), __builtin_LINE()}

using Collective = void (*)(void* const* lanes, Place place);

int thread_index();
int block_index();
unsigned char* shared_memory();
// All 32 lanes come with the same `what`; the last one does it for all, from what `own` of each points to.
void together(Collective what, void* own, Place place);
int barrier(int vote, Place place);  // whether any thread votes
void copy16_async(void* to, const void* from, bool valid, Place place);
void copies_commit();
void copies_wait(int pending, Place place);
int mutated(int number);  // 1 where this is the mutant that was asked for (mutations.py)
#define MUTANT(number) ::emulator::mutated(number)

struct Matrices { uint32_t* to; const void* row; };
struct Multiply16 { float *top, *bottom; const uint32_t* a; uint32_t b0, b1; };
struct Multiply64 { double* sum; double a, b; };
struct Exchange { void* to; const void* from; int lane, bytes; };
void load_matrices(void* const* lanes, Place place);
void load_matrices_transposed(void* const* lanes, Place place);
void multiply_float16(void* const* lanes, Place place);
void multiply_bfloat16(void* const* lanes, Place place);
void multiply_64(void* const* lanes, Place place);
void exchange(void* const* lanes, Place place);

float from_float16(uint16_t bits);
float from_bfloat16(uint16_t bits);
uint16_t to_float16(float x);
uint16_t to_bfloat16(float x);

using Kernel = void (*)(const void* argument);
int add_kernel(const char* name, Kernel kernel, unsigned argument_bytes);

template <auto KERNEL_> struct Entry;
template <class Argument, void (*KERNEL_)(Argument)> struct Entry<KERNEL_> {
  static void run(const void* argument) { KERNEL_(*static_cast<const Argument*>(argument)); }
  static constexpr unsigned BYTES = sizeof(Argument);
};
#define EMULATE(name, ...) \
  static const int added = ::emulator::add_kernel(name, ::emulator::Entry<__VA_ARGS__>::run, ::emulator::Entry<__VA_ARGS__>::BYTES)

}  // namespace emulator

namespace ringmpi {

DEVICE unsigned char* shared_memory() { return emulator::shared_memory(); }
DEVICE int thread_index() { return emulator::thread_index(); }
DEVICE int block_index() { return emulator::block_index(); }
DEVICE int opaque(int x) { return x; }
DEVICE void barrier(EMULATOR_PLACE) { emulator::barrier(0, place); }
DEVICE int barrier_or(int yes, EMULATOR_PLACE) { return emulator::barrier(yes, place); }
DEVICE void copy16_async(void* to, const void* from, bool valid, EMULATOR_PLACE) {
  emulator::copy16_async(to, from, valid, place);
}
DEVICE void copies_commit() { emulator::copies_commit(); }
template <int PENDING> DEVICE void copies_wait(EMULATOR_PLACE) { emulator::copies_wait(PENDING, place); }

DEVICE void load_matrices(u32 (&to)[4], const void* row, EMULATOR_PLACE) {
  emulator::Matrices own{to, row};
  emulator::together(emulator::load_matrices, &own, place);
}
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row, EMULATOR_PLACE) {
  emulator::Matrices own{to, row};
  emulator::together(emulator::load_matrices_transposed, &own, place);
}
// What a mutant has in the place of load_matrices_transposed.
DEVICE void load_either(int plain, u32 (&to)[4], const void* row, EMULATOR_PLACE) {
  plain ? load_matrices(to, row, place) : load_matrices_transposed(to, row, place);
}
DEVICE void warp_barrier(EMULATOR_PLACE) {
  emulator::together([](void* const*, emulator::Place) {}, nullptr, place);
}
template <class T>
DEVICE void multiply_16(float (&top)[2], float (&bottom)[2], const u32 (&a)[4], u32 b0, u32 b1, EMULATOR_PLACE) {
  emulator::Multiply16 own{top, bottom, a, b0, b1};
  constexpr bool half = std::is_same_v<T, Float16>;
  emulator::together(half ? emulator::multiply_float16 : emulator::multiply_bfloat16, &own, place);
}
DEVICE void multiply_64(double (&sum)[2], double a, double b, EMULATOR_PLACE) {
  emulator::Multiply64 own{sum, a, b};
  emulator::together(emulator::multiply_64, &own, place);
}
template <class T> DEVICE T from_lane(T x, int lane, EMULATOR_PLACE) {
  T to;
  emulator::Exchange own{&to, &x, lane, int(sizeof(T))};
  emulator::together(emulator::exchange, &own, place);
  return to;
}
template <class T> DEVICE T exchange(T x, int mask, EMULATOR_PLACE) {
  return from_lane(x, (thread_index() & 31) ^ mask, place);
}

template <class A> DEVICE A infinity() { return std::numeric_limits<A>::infinity(); }

template <class T> DEVICE u32 pack(float low, float high) {
  constexpr auto round = std::is_same_v<T, Float16> ? emulator::to_float16 : emulator::to_bfloat16;
  return u32(round(low)) | u32(round(high)) << 16;
}
DEVICE float widen(Float16 x) { return emulator::from_float16(x.bits); }
DEVICE float widen(BFloat16 x) { return emulator::from_bfloat16(x.bits); }
DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }

DEVICE float exponential2(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
DEVICE double exponential(double x) { return std::exp(x); }
DEVICE float hyperbolic_tangent(float x) { return std::tanh(x); }
DEVICE double hyperbolic_tangent(double x) { return std::tanh(x); }
DEVICE float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return std::fma(a, b, c); }
DEVICE float larger(float a, float b) { return std::fmax(a, b); }
DEVICE double larger(double a, double b) { return std::fmax(a, b); }
DEVICE u32 high_product(u32 a, u32 b) { return u32(u64(a) * b >> 32); }

}  // namespace ringmpi
