// Gradients of the pairs of a call (core/gradients.py has the formula). A block stands for rows of queries or for keys,
// as the host asks (`by_key`), and tiles of the other side visit it:
//
//   by_key   inner  outer    a block's rows are   gives                          tiles hold
//   0        dQ     -        rows of queries      dQ += scale dS' K              k, v
//   1        dK     dV       keys                 both (PAIR)                    q, dO
//   1        dK     -        keys                 dK += scale dS'^T Q            q, dO
//   1        -      dV       keys                 dV += (f p)^T dO               q, dO
//
//   s = cap(scale q . k) - slope |i - j|      p = e^(s - log_sum_exp)      dP = f dO . v      dS = p (dP - delta)
//   dS' = dS cap'                             d slope = -sum dS |i - j|
//
// f: dropout, 0 or 1 / (1 - dropout). What a block stands for is called a: `a1` is its q or k, `a2` its dO or v. What
// visits is b: `b1` the k or q of a tile, `b2` its v or dO. So s comes from a1 . b1 and dP from a2 . b2, whoever stands,
// and the inner gradient is that of a1, += dS' b1; the outer one that of a2, += f p b2. Where keys stand, the table of
// work is transposed: its rows are keys.
//
//   T, D, R, N, TERMS, EXTRAS, BLOCKS    forward.cuh
//   STAGES     2: the next tile is on its way while one is computed with
//   PAIR       whether both gradients of keys fit into registers; without, a launch gives the one whose array is there
//
// No two blocks add to the same element, and the order of sums of an element does not depend on other rows.
#pragma once

#include "carried.cuh"
#include "special.cuh"

namespace ringmpi {

template <class T, int D, int R, int N, int STAGES, bool PAIR, int TERMS, bool EXTRAS> class Gradient {
  using A = Sum<T>;
  static constexpr int M = 8 * R * WARPS, ROW = D * sizeof(T);  // bytes

 public:
  DEVICE Gradient(const Backward& call)
      : call_(call),
        p_(call.problem),
        batch_(block_index() % (p_.batch * heads()) / heads()),
        head_(block_index() % heads()),
        visiting_(by_key() ? head_ * group() : head_ / group()),
        walk_(p_.work, p_.work.order[block_index() / (p_.batch * heads())], by_key() ? group() : 1) {
    a1_.start = 0, a2_.start = M * ROW;
    b1_.start = 2 * M * ROW, b2_.start = b1_.start + STAGES * N * ROW;
    shift_.start = b2_.start + STAGES * N * ROW, delta_.start = shift_.start + STAGES * N * int(sizeof(A));
    seen_.start = delta_.start + STAGES * N * int(sizeof(A)), special_.start = seen_.start + 2 * M * int(sizeof(int2));
  }

  DEVICE void run() {
    if (walk_.done()) return;
    load_tile<M>(a1_, q_or_k().slab(batch_, head_), q_or_k().row_stride, walk_.first_row(), length(), p_.head_dim);
    if (inner())
      load_tile<M>(a2_, grad_or_v().slab(batch_, head_), grad_or_v().row_stride, walk_.first_row(), length(), p_.value_dim);
    load_visitors(0);
    load_sums_of_rows();
    for (int n = 0; !walk_.done(); ++n) step(n);
    store();
  }

 private:
  // Who stands, who visits; what is asked for.
  // Asked anew each time: what follows from it would else wait in registers, all of it.
  DEVICE bool by_key() const { return opaque(call_.by_key); }
  DEVICE bool outer() const { return call_.outer; }
  DEVICE bool inner() const { return PAIR || !call_.outer; }
  DEVICE Array q_or_k() const { return by_key() ? p_.k : p_.q; }
  DEVICE Array grad_or_v() const { return by_key() ? p_.v : call_.grad_output; }
  DEVICE Array k_or_q() const { return by_key() ? p_.q : p_.k; }
  DEVICE Array v_or_grad() const { return by_key() ? call_.grad_output : p_.v; }
  DEVICE i64 length() const { return by_key() ? p_.keys : p_.queries; }
  DEVICE i64 visiting_length() const { return by_key() ? p_.queries : p_.keys; }
  DEVICE int heads() const { return by_key() ? p_.key_heads : p_.query_heads; }
  DEVICE int group() const { return p_.query_heads / p_.key_heads; }
  DEVICE int visiting_head(int member) const { return visiting_ + member; }
  DEVICE int query_head(int member) const { return by_key() ? visiting_head(member) : head_; }
  DEVICE i64 row_slab(int query_head) const { return (i64(batch_) * p_.query_heads + query_head) * p_.queries; }

  DEVICE void load_visitors(int stage) {
    const int batch = opaque(batch_), head = opaque(visiting_head(walk_.member));
    load_tile<N>(b1(stage), k_or_q().slab(batch, head), k_or_q().row_stride, walk_.tile(), visiting_length(), p_.head_dim);
    load_tile<N>(b2(stage), v_or_grad().slab(batch, head), v_or_grad().row_stride, walk_.tile(), visiting_length(), p_.value_dim);
    copies_commit();
    if (!by_key() || thread_index() >= N) return;
    const i64 row = walk_.tile() + thread_index();
    const bool there = row < p_.queries;
    shift_[stage * N + thread_index()] = there ? shift_of(static_cast<const A*>(call_.log_sum_exp)[row_slab(head) + row]) : A(0);
    delta_[stage * N + thread_index()] = there ? static_cast<const A*>(call_.delta)[row_slab(head) + row] : A(0);
  }
  // -inf is that of rows without keys, and -inf - -inf would be NaN.
  static DEVICE A shift_of(A log_sum_exp) { return log_sum_exp == -infinity<A>() ? A(0) : log_sum_exp; }
  DEVICE Tile<T, D> b1(int stage) const { return {b1_.start + stage * N * ROW}; }
  DEVICE Tile<T, D> b2(int stage) const { return {b2_.start + stage * N * ROW}; }

  // Tile number n of this block.
  DEVICE void step(int n) {
    const int stage = n % STAGES;
    const bool full = walk_.full();
    const Visit visit = walk_.visit();
    int2* const seen = seen_.from(n % 2 * M);  // slower warps may still read the one before
    if (thread_index() < M && (EXTRAS || !full)) seen[thread_index()] = full ? int2{0, N} : walk_.seen_by(thread_index());
    copies_wait<0>();
    barrier();  // this tile has landed; no warp reads the one before any more
    if (STAGES == 2) advance((n + 1) % STAGES);
    compute(stage, full, seen, visit);
    if (STAGES == 2) return;
    barrier();  // no warp reads the tile any more
    advance(0);
  }
  DEVICE void advance(int stage) {
    walk_.next();
    if (!walk_.done()) load_visitors(stage);
  }

  DEVICE void compute(int stage, bool full, const int2* seen, Visit visit) {
    const int warp_row = Place<R>().warp_row;
    scores_.clear();
    add_inner(scores_.s, a1_, warp_row, b1(stage));
    products_.clear();
    if (inner()) add_inner(products_.s, a2_, warp_row, b2(stage));
    pairs_ += full ? R * N / 4 : exclude(scores_, seen);
    touched_ |= full ? ~0u : rows_that_see<R>(seen);
    weigh(stage, seen, visit);
    if constexpr (PAIR) {
      if (outer()) add(outer_, scores_, b2(stage), v_or_grad(), p_.value_dim, seen, visit);
      add(inner_, products_, b1(stage), k_or_q(), p_.head_dim, seen, visit);
    } else {
      add(inner_, products_, outer() ? b2(stage) : b1(stage), outer() ? v_or_grad() : k_or_q(),
          outer() ? p_.value_dim : p_.head_dim, seen, visit);
    }
  }

  // Scores to f p, and products dO . v to scale dS', in place; where there is one sum alone, its weights to `products_`.
  DEVICE void weigh(int stage, const int2* seen, Visit visit) {
    const Place<R> place;
    const Scoring& scoring = p_.scoring;
    const bool by_key = this->by_key();
    const A scale = A(scoring.scale), cap = EXTRAS ? A(scoring.softcap) : A(0);
    const A factor = A(EXTRAS && cap != 0 ? scoring.scale / scoring.softcap : held_raw<EXTRAS>(scoring) ? 1.0 : scoring.scale);
    const A natural = (held_raw<EXTRAS>(scoring) ? units_of<A>(scoring) : natural_units<A>()).natural;
    const A slope = EXTRAS && scoring.slopes ? A(scoring.slopes[query_head(visit.member)]) : A(0);
    const A kept_factor = EXTRAS ? A(scoring.dropout_factor) : A(1);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int2 span = EXTRAS ? seen[place.row(i)] : int2{0, N};
      const u32 kept = EXTRAS && scoring.least ? kept_of_row(i, visit) : ~0u;
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = place.column(j, e);
          const bool sees = !EXTRAS || (span.x <= column && column < span.y);
          A s = scores_.s[i][j][e], bend = A(0), far = A(0);
          if (EXTRAS) s *= factor;
          if (EXTRAS && cap != 0) bend = hyperbolic_tangent(s), s = cap * bend;
          if (EXTRAS && scoring.slopes) far = distance(i, column, visit), s -= slope * far;
          const A shift = by_key ? shift_[stage * N + column] : row_shift_[i];
          const A delta = by_key ? delta_[stage * N + column] : row_delta_[i];
          const A p = sees ? power(in_powers(s * natural - shift)) : A(0);
          const A f = kept >> (2 * j + e) & 1 ? kept_factor : A(0);
          const A weight = sees ? f * p : A(0), gradient = p * (f * products_.s[i][j][e] - delta);
          if (EXTRAS && scoring.slopes) slope_ -= sees ? double(gradient) * double(far) : 0.0;
          const A inner_weight = sees ? scale * (gradient * (A(1) - bend * bend)) : A(0);
          scores_.s[i][j][e] = weight;
          products_.s[i][j][e] = inner() ? inner_weight : weight;
        }
    }
  }
  DEVICE A distance(int i, int column, Visit visit) const {
    const Place<R> place;
    const Item& item = walk_.item_of(visit);
    const i64 ahead = item.row_position(walk_.first_row() + place.row(i)) - item.key_position(i64(visit.number) * N + column);
    return A(ahead < 0 ? -ahead : ahead);
  }
  DEVICE u32 kept_of_row(int i, Visit visit) const {
    const Place<R> place;
    const Item& item = walk_.item_of(visit);
    const i64 own = item.row_position(walk_.first_row() + place.row(i)), first = item.key_position(i64(visit.number) * N);
    const bool by_key = this->by_key();
    const auto other = [&](int n) { return first + item.key_stride * place.column(n >> 1, n & 1); };
    return kept_pairs<N / 4>(
        p_.scoring, u32(query_head(visit.member)), u32(batch_), [&](int n) { return by_key ? other(n) : own; },
        [&](int n) { return by_key ? own : other(n); });
  }

  // sums += weights b, with what is not finite in b kept from rows that do not see it.
  DEVICE void add(A (&sums)[R][D / 8][2], Scores<A, R, N>& weights, Tile<T, D> b, const Array& array, int columns,
                  const int2* seen, Visit visit) {
    if (EXTRAS && !p_.finite) {
      barrier();  // all products with the tile as it is are done
      if (clean<N>(b, special_.from(0)))
        add_special<T>(sums, weights, seen, special_.from(0),
                       array.slab(batch_, visiting_head(visit.member)) + i64(visit.number) * N * array.row_stride,
                       array.row_stride, columns);
    }
    add_outer<T, TERMS>(sums, weights.s, b);
  }

  DEVICE void load_sums_of_rows() {
    load_sums(inner_, sums_of_rows(), Block<R>{walk_.first_row(), sums_of_rows() ? length() : 0}, columns());
    if constexpr (PAIR)
      load_sums(outer_, outer_array(), Block<R>{walk_.first_row(), outer() ? length() : 0}, p_.value_dim);
    const Block<R> rows{walk_.first_row(), by_key() ? 0 : length()};
    load_rows(row_shift_, static_cast<const A*>(call_.log_sum_exp) + row_slab(head_), rows, A(0));
    load_rows(row_delta_, static_cast<const A*>(call_.delta) + row_slab(head_), rows, A(0));
#pragma unroll
    for (int i = 0; i < R; ++i) row_shift_[i] = shift_of(row_shift_[i]);
  }
  DEVICE void store() {
    const Block<R> rows{walk_.first_row(), length(), touched_};
    if (sums_of_rows()) store_sums(inner_, sums_of_rows(), rows, columns());
    if constexpr (PAIR) {
      if (outer()) store_sums(outer_, outer_array(), rows, p_.value_dim);
    }
    store_total(i64(pairs_), p_.attended);
    if (EXTRAS && !by_key() && call_.slope) store_total(slope_, call_.slope);
  }
  // What `inner_` holds. Null: it is not wanted.
  DEVICE int columns() const { return inner() ? p_.head_dim : p_.value_dim; }
  DEVICE A* sums_of_rows() const {
    if (!inner()) return outer_array();
    return call_.inner ? static_cast<A*>(call_.inner) + rows_before() * p_.head_dim : nullptr;
  }
  DEVICE i64 rows_before() const { return (i64(batch_) * heads() + head_) * length(); }
  DEVICE A* outer_array() const { return static_cast<A*>(call_.outer) + rows_before() * p_.value_dim; }

  const Backward& call_;
  const Problem& p_;
  const int batch_, head_, visiting_;  // visiting_: the first head that visits
  Walk<M, N> walk_;
  Tile<T, D> a1_, a2_, b1_, b2_;  // b: of STAGES tiles, the first
  Numbers<A> shift_, delta_;      // [STAGES][N]: log_sum_exp and delta of visiting rows
  Numbers<int2> seen_;            // [2][M]
  Numbers<int> special_;          // [N]
  Scores<A, R, N> scores_, products_;
  A inner_[R][D / 8][2], outer_[R][PAIR ? D / 8 : 1][2], row_shift_[R], row_delta_[R];
  u32 pairs_ = 0;                 // forward.cuh
  u32 touched_ = 0;               // bit i: row i has met something
  double slope_ = 0;
};

template <class T, int D, int R, int N, int STAGES, bool PAIR, int TERMS, bool EXTRAS, int BLOCKS>
KERNEL void __launch_bounds__(THREADS, BLOCKS) backward(const __grid_constant__ Backward call) {
  Gradient<T, D, R, N, STAGES, PAIR, TERMS, EXTRAS>(call).run();
}

}  // namespace ringmpi
