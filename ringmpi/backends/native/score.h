// What stands between q . k and a weight (core/scoring.py), on a strip of scores: keys one under the other, one row of
// queries a lane.
//
//   s = cap(scale q . k) - slope |i - j|      -inf where the mask excludes      weight = f e^(s - row_max)
//
// f: dropout, 0 or 1 / (1 - dropout).
#pragma once

#include "abi.h"
#include "philox.h"
#include "pack.h"
#include "work.h"

namespace ringmpi {

constexpr int64_t TILE = 128;  // keys whose weights live at once

// What a strip of rows needs of one work item, lane by lane. Keys count from `origin`, a local key.
template <class T> struct alignas(64) Lanes {
  static constexpr int S = STRIP<T>;
  Integer<T> start[S], stop[S];  // keys of the lane; start = stop: none, or a lane that is not of this item
  T slope[S], distance[S];       // ALiBi: row position - position of key `origin`
  uint32_t row[S], head[S];      // dropout: counters
  uint32_t batch;
  int64_t key_position, key_stride;  // of key `origin`; from key to key
};

template <class T> struct Scorer {
  const Problem& problem;

  bool plain() const { return problem.softcap == 0 && !problem.slopes; }
  bool drops() const { return problem.dropout_least > 0; }

  // What q is multiplied with before q . k is formed.
  T factor() const { return T(problem.softcap ? problem.scale / problem.softcap : problem.scale); }

  // Of one vector, lanes `at` and on: cap, ALiBi and mask to scores[k - first] of keys first <= k < stop, STRIP apart.
  // Returns the maxima over keys.
  RINGMPI_INLINE Vec<T> finish(T* scores, const Lanes<T>& lanes, int at, int64_t first, int64_t stop) const {
    const T cap = T(problem.softcap), stride = T(lanes.key_stride);
    const Ints<T> from = load_ints<T>(lanes.start + at), to = load_ints<T>(lanes.stop + at);
    const Vec<T> slope = load(lanes.slope + at), distance = load(lanes.distance + at);
    Vec<T> largest = broadcast(-INF<T>);
    for (int64_t k = first; k < stop; ++k, scores += STRIP<T>) {
      Vec<T> s = load(scores);
      if (cap != 0) s = cap * tanh<T>(s);
      if (problem.slopes) {
        const Vec<T> far = distance - stride * T(k);
        s -= slope * (far < 0 ? -far : far);
      }
      const Integer<T> key = Integer<T>(k);
      s = ((from <= key) & (to > key)) ? s : broadcast(-INF<T>);
      store(scores, s);
      largest = larger(s, largest);
    }
    return largest;
  }

  // Of one vector: multiplies weights[k - first] with the dropout of the pair.
  void drop(T* weights, const Lanes<T>& lanes, int at, int64_t first, int64_t stop) const {
    constexpr int L = LANES<T>;
    alignas(64) uint32_t words[4][L];
    int64_t have = -1;
    const T kept = T(problem.dropout_factor);
    for (int64_t k = first; k < stop; ++k, weights += STRIP<T>) {
      const int64_t position = lanes.key_position + lanes.key_stride * k, quad = position >> 2;
      if (quad != have) {
        for (int lane = 0; lane < L; ++lane) {
          words[0][lane] = lanes.row[at + lane], words[1][lane] = uint32_t(quad);
          words[2][lane] = lanes.head[at + lane], words[3][lane] = lanes.batch;
        }
        philox<L>(words, problem.seed);
        have = quad;
      }
      const uint32_t* word = words[position & 3];
      for (int lane = 0; lane < L; ++lane) weights[lane] *= word[lane] >= problem.dropout_least ? kept : T(0);
    }
  }
};

}  // namespace ringmpi
