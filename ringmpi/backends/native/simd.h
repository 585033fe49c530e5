// Vectors of one width, by the vector types of GCC and Clang: one source for SSE, AVX2, AVX-512 and NEON.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#ifndef RINGMPI_VECTOR_BYTES
#define RINGMPI_VECTOR_BYTES 16
#endif
#define RINGMPI_INLINE inline __attribute__((always_inline))

namespace ringmpi {

template <class T> struct IntegerOf;
template <> struct IntegerOf<float> { using type = int32_t; };
template <> struct IntegerOf<double> { using type = int64_t; };
template <class T> using Integer = typename IntegerOf<T>::type;

template <class T> struct Simd {
  typedef T Vec __attribute__((vector_size(RINGMPI_VECTOR_BYTES), may_alias));
  typedef Integer<T> Ints __attribute__((vector_size(RINGMPI_VECTOR_BYTES), may_alias));
};
template <class T> using Vec = typename Simd<T>::Vec;    // values
template <class T> using Ints = typename Simd<T>::Ints;  // integers of the same size; what comparisons give (0 or -1)
template <class T> constexpr int LANES = RINGMPI_VECTOR_BYTES / int(sizeof(T));

// Scratch is aligned to 64 bytes: these two need it.
template <class T> RINGMPI_INLINE Vec<T> load(const T* from) { return *reinterpret_cast<const Vec<T>*>(from); }
template <class T> RINGMPI_INLINE void store(T* to, Vec<T> x) { *reinterpret_cast<Vec<T>*>(to) = x; }
template <class T> RINGMPI_INLINE Ints<T> load_ints(const Integer<T>* from) {
  return *reinterpret_cast<const Ints<T>*>(from);
}
template <class T> RINGMPI_INLINE Vec<T> broadcast(T x) { return x - Vec<T>{}; }  // x - 0 is x, -0 and NaN included

// On ties and NaN the second operand: NaN in `kept` stays, NaN in `x` does not come in.
template <class V> RINGMPI_INLINE V larger(V x, V kept) { return x > kept ? x : kept; }

// x, of which the compiler knows nothing: neither its value nor the product behind it, to be folded into an FMA.
template <class V> RINGMPI_INLINE V rounded(V x) {
  asm("" : "+m"(x));
  return x;
}

template <class T> struct Exp2;

// C: 2^f ~ 1 + C[0] f + C[1] f^2 + ... on [-1/2, 1/2], minimax of the relative error (9.1e-8 and 1.8e-17), 1 at 0.
template <> struct Exp2<float> {
  static constexpr int DEGREE = 5, MANTISSA = 23, BIAS = 127;
  static constexpr float MAGIC = 12582912.f + BIAS;  // 1.5 x 2^23 + BIAS: adding it leaves round(x) + BIAS in low bits
  static constexpr float C[DEGREE] = {0.693146978f, 0.240222421f, 0.0555073396f, 0.00967151132f, 0.00132646524f};
};
template <> struct Exp2<double> {
  static constexpr int DEGREE = 11, MANTISSA = 52, BIAS = 1023;
  static constexpr double MAGIC = 6755399441055744. + BIAS;  // 1.5 x 2^52 + BIAS
  static constexpr double C[DEGREE] = {
      0.693147180559945697, 0.24022650695910098, 0.0555041086647903946, 0.00961812910760700238,
      0.00133335581534399647, 0.000154035304415721303, 1.52527273851938682e-5, 1.32154426753298221e-6,
      1.01806476592341389e-7, 7.07257041281442351e-9, 4.07807192958833667e-10};
};

constexpr double LOG2_E = 1.44269504088896340736;

// 2^(unit x) for unit x below BIAS; exactly 0 where that is no normal number, NaN for NaN, exactly 1 at 0.
// `least`: see floor_of.
template <class T> RINGMPI_INLINE Vec<T> power_of_2(Vec<T> x, T unit, Vec<T> least) {
  using E = Exp2<T>;
  const Vec<T> magic = broadcast(E::MAGIC);
  x = larger(least, x);  // NaN stays
  const Vec<T> shifted = x * unit + magic;
  const Vec<T> f = x * unit - (shifted - magic);
  Vec<T> p = broadcast(E::C[E::DEGREE - 1]);
#pragma GCC unroll 16
  for (int i = E::DEGREE - 2; i >= 0; --i) p = p * f + E::C[i];
  p = p * f + T(1);
  return p * reinterpret_cast<Vec<T>>(reinterpret_cast<Ints<T>>(shifted) << E::MANTISSA);
}
// The x of unit x = -BIAS. The compiler may not know its value: with a constant, GCC 12 makes two instructions of
// `larger`. So take it once, outside of loops.
template <class T> RINGMPI_INLINE Vec<T> floor_of(T unit) { return rounded(broadcast(-Exp2<T>::BIAS / unit)); }

template <class T> RINGMPI_INLINE Vec<T> exp_floor() { return floor_of<T>(T(LOG2_E)); }
template <class T> RINGMPI_INLINE Vec<T> exp(Vec<T> x, Vec<T> floor) { return power_of_2<T>(x, T(LOG2_E), floor); }
template <class T> RINGMPI_INLINE Vec<T> exp2(Vec<T> x) { return power_of_2<T>(x, T(1), floor_of<T>(T(1))); }

template <class T> constexpr T INF = std::numeric_limits<T>::infinity();

// tanh(x) = x + x z P(z) with z = x^2 below 0.625 (Cephes, Moshier 1989, tanhf and tanh), (1 - e) / (1 + e) with
// e = exp(-2 |x|) above: relative error of about one unit in the last place on both sides.
RINGMPI_INLINE Vec<float> tanh_near(Vec<float> x) {
  const Vec<float> z = x * x;
  Vec<float> p = broadcast(-5.70498872745e-3f) * z + 2.06390887954e-2f;
  p = ((p * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z - 3.33332819422e-1f;
  return p * z * x + x;
}
RINGMPI_INLINE Vec<double> tanh_near(Vec<double> x) {
  const Vec<double> z = x * x;
  const Vec<double> p = (z * -9.64399179425052238628e-1 - 9.92877231001918586564e1) * z - 1.61468768441708447952e3;
  const Vec<double> q =
      ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3;
  return p / q * z * x + x;
}
template <class T> RINGMPI_INLINE Vec<T> tanh(Vec<T> x) {
  const Vec<T> size = x < 0 ? -x : x;
  const Vec<T> e = exp2<T>(size * T(-2 * LOG2_E));
  const Vec<T> far = (1 - e) / (1 + e);
  return size < T(0.625) ? tanh_near(x) : (x < 0 ? -far : far);
}

}  // namespace ringmpi
