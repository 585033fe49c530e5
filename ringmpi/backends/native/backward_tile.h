// The five products of a tile: up to TILE_ROWS rows of one query head and TILE_KEYS keys.
//
//   S = Q K^T      dP = dO V^T      dV += p^T dO      dK += dS^T Q      dQ += dS K
//
// Every sum of a tile starts at zero, runs over keys (or rows) in ascending order, and is added once; a pair that the
// mask leaves out adds exactly 0. So neither what is computed together nor what is left out changes a bit.
#pragma once

#include "ahead.h"
#include "backward_products.h"
#include "backward_scores.h"

namespace ringmpi {

// A tile of keys with its gradients: [keys][dim], the transposed ones [dim][keys].
template <class T> struct KeyTile {
  int64_t first, count;
  Panels<T> key, value, key_transposed, value_transposed, key_gradient, value_gradient;
};

constexpr int64_t THIN = 16;  // values of so few columns may be added column by column

// Which rows of a tile have a gradient other than 0 in each column of values. Few columns of few rows each, as in the
// map pass, are added key by key side by side, which is quicker; the sums are the same, without terms that are 0.
struct Spans {
  int64_t first[THIN], end[THIN];
  bool few = false;

  template <class T> void look(Panels<T> x, int64_t row, int64_t row_end, int64_t columns) {
    int64_t total = 0;
    for (int64_t c = 0; c < columns; ++c) {
      first[c] = row, end[c] = row_end;
      while (first[c] < end[c] && *x.at(first[c], c) == 0) ++first[c];
      while (first[c] < end[c] && *x.at(end[c] - 1, c) == 0) --end[c];
      total += end[c] - first[c];
    }
    few = total <= 2 * (row_end - row);
  }
};

// A tile of rows of one query head, [rows][dim]. `upstream` is dO; `query` is multiplied by the scale, or by
// scale / softcap. The clean ones have 0 in place of NaN and inf: as 0 x NaN these would reach what does not see them.
template <class T> struct RowTile {
  int64_t first, count;
  Panels<T> query, upstream, clean_query, clean_upstream, gradient;
  T *log_sum_exp, *delta;  // [ROOM]
  bool special;            // upstream holds NaN or inf
  Spans spans;             // of upstream, where everything is finite
};

template <class T> struct Tile {
  const Problem& problem;
  bool wants_query, wants_key, wants_value;
  Panels<T> weights, gradient;  // p and dS, [ROOM][TILE_KEYS]; dS only where query or key is wanted
  Beside<T>& beside;
  Ahead& ahead;
  double slope = 0;             // sum of dS |i - j|
  int64_t pairs = 0;

  // Adds the gradients of one item's pairs between `rows` and `keys`, of which `sight` tells.
  void add(const Pairing<T>& pair, const Sight& sight, const RowTile<T>& rows, const KeyTile<T>& keys) {
    pair.plain() ? score<true>(pair, sight, rows, keys) : score<false>(pair, sight, rows, keys);
    if (wants_value) {
      if (rows.spans.few)
        add_columns_of(sight, rows, keys.value_gradient);
      else
        add_to_keys(sight, weights, rows.clean_upstream, problem.value_dim, T(1), keys.value_gradient);
      if (rows.special) add_special(sight, rows, keys);
    }
    if (wants_key) {
      const T factor = T(problem.softcap ? problem.softcap : 1);  // what makes `scale` of the factor in q
      add_to_keys(sight, gradient, rows.clean_query, problem.head_dim, factor, keys.key_gradient);
    }
    if (wants_query)
      each_width<T>(problem.head_dim, [&](int64_t column, auto n) {
        for (int64_t s = 0; s < sight.strip_count; ++s) {
          const Strip& strip = sight.strips[s];
          if (strip.start[0] < strip.stop[1])
            add_rows<T, n>(gradient, strip.row, keys.key, column, {strip.start[0], strip.stop[1]}, T(problem.scale),
                           rows.gradient);
        }
      });
  }

 private:
  // Weights p (with dropout: f p) and dS. Keys outside, strips of rows inside: the panels of K and V stay in L1.
  template <bool PLAIN>
  void score(const Pairing<T>& pair, const Sight& sight, const RowTile<T>& rows, const KeyTile<T>& keys) {
    for (int64_t key = sight.key / PANEL<T> * PANEL<T>; key < sight.key_end; key += PANEL<T>)
      for (int64_t s = 0; s < sight.strip_count; ++s) {
        const Strip& strip = sight.strips[s];
        if (strip.touches(key, key + PANEL<T>)) score_block<PLAIN>(pair, sight, strip, key, rows, keys);
        ahead.step(2);
      }
  }

  template <bool PLAIN>
  void score_block(const Pairing<T>& pair, const Sight& sight, const Strip& strip, int64_t key, const RowTile<T>& rows,
                   const KeyTile<T>& keys) {
    const int64_t low = std::max<int64_t>(strip.start[0] - key, 0), high = std::min(strip.stop[1] - key, PANEL<T> + 0l);
    const int from = int(low / LANES<T>), end = low < high ? int((high + LANES<T> - 1) / LANES<T>) : from;
    Block<T> block{pair, sight, beside, strip.row, key, strip.covers(key, key + PANEL<T>)};
    T *p = weights.at(strip.row, key), *ds = gradient.at(strip.row, key);
    const bool wants_scores = wants_query || wants_key;
    if (end - from < PANEL_VECS) {
      clear_outside(p, from, end);
      if (wants_scores) clear_outside(ds, from, end);
    }
    if (from == end) return;
    pairs += block.whole ? HIGH * PANEL<T> : block.pairs();
    if (!PLAIN) block.prepare();
    const int64_t column = key + from * LANES<T>;
    with_vectors(end - from, [&](auto n) {
      store_rows<T, n>(rows.query, strip.row, keys.key_transposed, column, problem.head_dim, p + from * LANES<T>);
    });
    block.template weigh<PLAIN>(p, rows.log_sum_exp + strip.row, from, end);
    if (!wants_scores) {
      if (!PLAIN && problem.dropout_least) block.keep(p, from, end);
      return;
    }
    with_vectors(end - from, [&](auto n) {
      store_rows<T, n>(rows.upstream, strip.row, keys.value_transposed, column, problem.value_dim,
                       ds + from * LANES<T>);
    });
    slope += block.template bring_back<PLAIN>(p, ds, rows.delta + strip.row, from, end);
  }

  // What products over rows read beside the vectors [from, end) of a block is 0.
  static void clear_outside(T* block, int from, int end) {
    for (int i = 0; i < HIGH; ++i)
      for (int v = 0; v < PANEL_VECS; ++v)
        if (v < from || v >= end) store(block + i * PANEL<T> + v * LANES<T>, Vec<T>{});
  }

  // C[key] += factor sum over rows of A[row][key] B[row], strip of keys by strip of keys.
  void add_to_keys(const Sight& sight, Panels<T> a, Panels<T> b, int64_t dim, T factor, Panels<T> c) {
    each_width<T>(dim, [&](int64_t column, auto n) {
      for (int64_t panel = sight.key / PANEL<T> * PANEL<T>; panel < sight.key_end; panel += PANEL<T>)
        for (int64_t lane = 0, next; lane < PANEL<T> && panel + lane < sight.key_end; lane = next) {
          const bool six = PANEL<T> - lane > 8;  // 64, 32, 16 and 8 are sixes and then fours
          next = lane + (six ? 6 : 4);
          const int64_t key = panel + lane;
          const Keys depth = sight.rows_that_touch(std::max(key, sight.key), panel + next);
          if (depth.start >= depth.stop) continue;
          six ? add_columns<T, 6, n>(a, key, b, column, depth, factor, c)
              : add_columns<T, 4, n>(a, key, b, column, depth, factor, c);
        }
    });
  }

  // dV column by column, the keys of a panel side by side.
  void add_columns_of(const Sight& sight, const RowTile<T>& rows, Panels<T> c) {
    for (int64_t panel = sight.key / PANEL<T> * PANEL<T>; panel < sight.key_end; panel += PANEL<T>) {
      const Keys depth = sight.rows_that_touch(std::max(panel, sight.key), panel + PANEL<T>);
      for (int64_t column = 0; column < problem.value_dim; ++column) {
        const int64_t first = std::max(depth.start, rows.spans.first[column]);
        const int64_t end = std::min(depth.stop, rows.spans.end[column]);
        if (first >= end) continue;
        Vec<T> sums[PANEL_VECS]{};
        for (int64_t row = first; row < end; ++row) {
          const T x = *rows.upstream.at(row, column), *p = weights.at(row, panel);
#pragma GCC unroll 4
          for (int v = 0; v < PANEL_VECS; ++v) sums[v] += load(p + v * LANES<T>) * x;
        }
        for (int64_t n = 0; n < PANEL<T>; ++n) *c.at(panel + n, column) += sums[n / LANES<T>][n % LANES<T>];
      }
    }
  }

  // Brings NaN and inf of dO back to the values of the keys that their rows see.
  void add_special(const Sight& sight, const RowTile<T>& rows, const KeyTile<T>& keys) {
    for (int64_t row = sight.row; row < sight.row_end; ++row)
      for (int64_t c = 0; c < problem.value_dim; ++c) {
        const T x = *rows.upstream.at(row, c);
        if (std::isfinite(x)) continue;
        for (int64_t key = sight.start[row]; key < sight.stop[row]; ++key) {
          const T p = *weights.at(row, key);
          if (p != 0) *keys.value_gradient.at(key, c) += p * x;
        }
      }
  }
};

}  // namespace ringmpi
