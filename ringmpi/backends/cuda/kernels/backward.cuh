// Gradients of the pairs of a call (core/gradients.py has the formula). One template, three uses:
//
//   BY_KEY   INNER  OUTER    a block's rows are   gives                          tiles hold
//   false    yes    no       rows of queries      dQ += scale dS' K              k, v
//   true     yes    no       keys                 dK += scale dS'^T Q            q, dO
//   true     no     yes      keys                 dV += (f p)^T dO               q, dO
//   true     yes    yes      keys                 both
//
//   s = cap(scale q . k) - slope |i - j|      p = e^(s - log_sum_exp)      dP = f dO . v      dS = p (dP - delta)
//   dS' = dS cap'                             d slope = -sum dS |i - j|
//
// f: dropout, 0 or 1 / (1 - dropout). What a block stands for is called a: `a1` is its q or k, `a2` its dO or v. What
// visits is b: `b1` the k or q of a tile, `b2` its v or dO. So s comes from a1 . b1 and dP from a2 . b2, whoever stands,
// and INNER adds dS' b1 to the gradient of a1, OUTER f p b2 to that of a2. Where keys stand, the table of work is
// transposed: its rows are keys.
//
// No two blocks add to the same element, and the order of sums of an element does not depend on other rows. With
// STAGES = 2 the next tile is on its way while one is computed with.
#pragma once

#include "carried.cuh"
#include "special.cuh"

namespace ringmpi {

template <class T, int DQ, int DV, int R, int N, int STAGES, int TERMS, bool EXTRAS, bool BY_KEY, bool INNER, bool OUTER>
class Gradient {
  using A = Sum<T>;
  static constexpr int M = 8 * R * WARPS;

 public:
  DEVICE Gradient(const Backward& call, unsigned char* memory)
      : call_(call),
        p_(call.problem),
        heads_(BY_KEY ? p_.key_heads : p_.query_heads),
        group_(p_.query_heads / p_.key_heads),
        slab_(block_index() % (p_.batch * heads_)),
        batch_(int(slab_ / heads_)),
        head_(int(slab_ % heads_)),
        walk_(p_.work, p_.work.order[block_index() / (p_.batch * heads_)], BY_KEY ? group_ : 1) {
    a1_.data = reinterpret_cast<T*>(memory);
    a2_.data = a1_.data + M * DQ;
    b1_.data = a2_.data + M * DV;
    b2_.data = b1_.data + STAGES * N * DQ;
    shift_ = reinterpret_cast<A*>(b2_.data + STAGES * N * DV);
    delta_ = shift_ + STAGES * N;
    seen_ = reinterpret_cast<int2*>(delta_ + STAGES * N);
    special_ = reinterpret_cast<int*>(seen_ + 2 * M);
  }

  DEVICE void run() {
    if (walk_.done()) return;
    load_tile<M>(a1_, own(q_or_k()), q_or_k().row_stride, walk_.first_row(), length(), p_.head_dim);
    if (INNER) load_tile<M>(a2_, own(grad_or_v()), grad_or_v().row_stride, walk_.first_row(), length(), p_.value_dim);
    load_visitors(walk_, 0);
    load_sums_of_rows();
    for (int n = 0; !walk_.done(); ++n) step(n);
    store();
  }

 private:
  // Who stands, who visits.
  DEVICE const Array& q_or_k() const { return BY_KEY ? p_.k : p_.q; }
  DEVICE const Array& grad_or_v() const { return BY_KEY ? p_.v : call_.grad_output; }
  DEVICE const Array& k_or_q() const { return BY_KEY ? p_.q : p_.k; }
  DEVICE const Array& v_or_grad() const { return BY_KEY ? call_.grad_output : p_.v; }
  DEVICE i64 length() const { return BY_KEY ? p_.keys : p_.queries; }
  DEVICE i64 visiting_length() const { return BY_KEY ? p_.queries : p_.keys; }
  DEVICE int visiting_head(int member) const { return BY_KEY ? head_ * group_ + member : head_ / group_; }
  DEVICE int query_head() const { return BY_KEY ? visiting_head(walk_.member) : head_; }
  DEVICE const unsigned char* own(const Array& array) const { return array.slab(batch_, head_); }
  DEVICE i64 row_slab(int query_head) const { return (i64(batch_) * p_.query_heads + query_head) * p_.queries; }

  DEVICE void load_visitors(const Walk<M, N>& of, int stage) {
    const int head = visiting_head(of.member);
    load_tile<N>(b1(stage), k_or_q().slab(batch_, head), k_or_q().row_stride, of.tile(), visiting_length(), p_.head_dim);
    if (INNER || OUTER)
      load_tile<N>(b2(stage), v_or_grad().slab(batch_, head), v_or_grad().row_stride, of.tile(), visiting_length(), p_.value_dim);
    copies_commit();
    if (!BY_KEY || thread_index() >= N) return;
    const i64 row = of.tile() + thread_index();
    const bool there = row < p_.queries;
    shift_[stage * N + thread_index()] = there ? static_cast<const A*>(call_.log_sum_exp)[row_slab(head) + row] : A(0);
    delta_[stage * N + thread_index()] = there ? static_cast<const A*>(call_.delta)[row_slab(head) + row] : A(0);
  }
  DEVICE Tile<T, DQ> b1(int stage) const { return {b1_.data + stage * N * DQ}; }
  DEVICE Tile<T, DV> b2(int stage) const { return {b2_.data + stage * N * DV}; }

  // Tile number n of this block.
  DEVICE void step(int n) {
    const int stage = n % STAGES;
    const bool full = walk_.full();
    int2* const seen = seen_ + n % 2 * M;  // slower warps may still read the one before
    if (thread_index() < M && (EXTRAS || !full)) seen[thread_index()] = full ? int2{0, N} : walk_.seen_by(thread_index());
    copies_wait<0>();
    barrier();  // this tile has landed; no warp reads the one before any more
    if constexpr (STAGES == 2) {
      Walk<M, N> next = walk_;
      next.next();
      if (!next.done()) load_visitors(next, (n + 1) % STAGES);
      compute(stage, full, seen);
      walk_ = next;
    } else {
      compute(stage, full, seen);
      barrier();  // no warp reads the tile any more
      walk_.next();
      if (!walk_.done()) load_visitors(walk_, 0);
    }
  }

  DEVICE void compute(int stage, bool full, const int2* seen) {
    const int warp_row = Place<R>().warp_row;
    scores_.clear();
    add_inner(scores_.s, a1_, warp_row, b1(stage));
    if (INNER) {
      products_.clear();
      add_inner(products_.s, a2_, warp_row, b2(stage));
    }
    weigh(stage, full, seen);
    touched_ |= full ? ~0u : rows_that_see<R>(seen);
    if (OUTER) add(outer_, scores_, b2(stage), v_or_grad(), p_.value_dim, seen);
    if (INNER) add(inner_, products_, b1(stage), k_or_q(), p_.head_dim, seen);
  }

  // Scores to f p, and products dO . v to scale dS', in place.
  DEVICE void weigh(int stage, bool full, const int2* seen) {
    const Place<R> place;
    const A cap = EXTRAS ? A(p_.scoring.softcap) : A(0), scale = A(p_.scoring.scale);
    const A factor = A(cap != 0 ? p_.scoring.scale / p_.scoring.softcap : p_.scoring.scale);
    const A slope = EXTRAS && p_.scoring.slopes ? A(p_.scoring.slopes[query_head()]) : A(0);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int2 span = full ? int2{0, N} : seen[place.row(i)];
      const u32 kept = EXTRAS && p_.scoring.least ? kept_of_row(i) : ~0u;
      const A kept_factor = EXTRAS ? A(p_.scoring.dropout_factor) : A(1);
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = place.column(j, e);
          const bool sees = span.x <= column && column < span.y;
          A s = scores_.s[i][j][e] * factor, bend = A(0), far = A(0);
          if (EXTRAS && cap != 0) bend = hyperbolic_tangent(s), s = cap * bend;
          if (EXTRAS && p_.scoring.slopes) far = distance(i, column), s -= slope * far;
          const A shift = BY_KEY ? shift_[stage * N + column] : row_shift_[i];
          const A delta = BY_KEY ? delta_[stage * N + column] : row_delta_[i];
          const A p = sees ? exponential(s - shift) : A(0);
          const A f = kept >> (2 * j + e) & 1 ? kept_factor : A(0);
          if (INNER) {
            const A gradient = p * (f * products_.s[i][j][e] - delta);
            if (EXTRAS) slope_ -= sees ? double(gradient) * double(far) : 0.0;
            products_.s[i][j][e] = sees ? scale * (gradient * (A(1) - bend * bend)) : A(0);
          }
          scores_.s[i][j][e] = sees ? f * p : A(0);
          pairs_ += sees;
        }
    }
  }
  DEVICE A distance(int i, int column) const {
    const Place<R> place;
    const i64 ahead = walk_.item().row_position(walk_.first_row() + place.row(i)) - walk_.item().key_position(walk_.tile() + column);
    return A(ahead < 0 ? -ahead : ahead);
  }
  DEVICE u32 kept_of_row(int i) const {
    const Place<R> place;
    const i64 own = walk_.item().row_position(walk_.first_row() + place.row(i));
    const auto other = [&](int n) { return walk_.item().key_position(walk_.tile() + place.column(n >> 1, n & 1)); };
    const auto same = [&](int) { return own; };
    if constexpr (BY_KEY) return kept_pairs<N / 4>(p_.scoring, u32(query_head()), u32(batch_), other, same);
    else return kept_pairs<N / 4>(p_.scoring, u32(query_head()), u32(batch_), same, other);
  }

  // sums += weights b, with what is not finite in b kept from rows that do not see it.
  template <int D>
  DEVICE void add(A (&sums)[R][D / 8][2], Scores<A, R, N>& weights, Tile<T, D> b, const Array& array, int columns, const int2* seen) {
    if (EXTRAS && !p_.finite) {
      barrier();  // all products with the tile as it is are done
      if (clean<N>(b, special_))
        add_special<T>(sums, weights, seen, special_,
                       array.slab(batch_, visiting_head(walk_.member)) + walk_.tile() * array.row_stride, array.row_stride, columns);
    }
    add_outer<T, TERMS>(sums, weights.s, b);
  }

  DEVICE void load_sums_of_rows() {
    const Block<R> rows{walk_.first_row(), length()};
    if (INNER) load_sums(inner_, inner_array(), Block<R>{walk_.first_row(), call_.inner ? length() : 0}, p_.head_dim);
    if (OUTER) load_sums(outer_, outer_array(), rows, p_.value_dim);
    if (BY_KEY) return;
    load_rows(row_shift_, static_cast<const A*>(call_.log_sum_exp) + row_slab(head_), rows, A(0));
    load_rows(row_delta_, static_cast<const A*>(call_.delta) + row_slab(head_), rows, A(0));
  }
  DEVICE void store() {
    const Block<R> rows{walk_.first_row(), length(), touched_};
    if (INNER && call_.inner) store_sums(inner_, inner_array(), rows, p_.head_dim);
    if (OUTER) store_sums(outer_, outer_array(), rows, p_.value_dim);
    store_total(pairs_, p_.attended);
    if (EXTRAS && !BY_KEY && call_.slope) store_total(slope_, call_.slope);
  }
  DEVICE A* inner_array() const { return static_cast<A*>(call_.inner) + slab_ * length() * p_.head_dim; }
  DEVICE A* outer_array() const { return static_cast<A*>(call_.outer) + slab_ * length() * p_.value_dim; }

  const Backward& call_;
  const Problem& p_;
  const int heads_, group_;
  const i64 slab_;
  const int batch_, head_;
  Walk<M, N> walk_;
  Tile<T, DQ> a1_, b1_;  // b: of STAGES tiles, the first
  Tile<T, DV> a2_, b2_;
  A *shift_, *delta_;    // [STAGES][N]: log_sum_exp and delta of visiting rows
  int2* seen_;           // [2][M]
  int* special_;         // [N]
  Scores<A, R, N> scores_, products_;
  A inner_[R][DQ / 8][2], outer_[R][DV / 8][2], row_shift_[R], row_delta_[R];
  i64 pairs_ = 0;
  u32 touched_ = 0;      // bit i: row i has met something
  double slope_ = 0;
};

template <class T, int DQ, int DV, int R, int N, int STAGES, int TERMS, bool EXTRAS, bool BY_KEY, bool INNER, bool OUTER>
KERNEL void __launch_bounds__(THREADS, 1) backward(const Backward call) {
  SHARED_MEMORY(memory);
  Gradient<T, DQ, DV, R, N, STAGES, TERMS, EXTRAS, BY_KEY, INNER, OUTER>(call, memory).run();
}

}  // namespace ringmpi
