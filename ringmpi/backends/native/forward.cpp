// Forward attention on tiles of keys, packed or where they lie. For a strip of rows, one a lane, and a tile:
//
//   s = K q        m' = max(m, max s)       p = e^(s - m')      a = e^(m - m')
//                  l' = a l + sum p         o' = a o + V^T p
//
// with the sums over the tile starting at zero. A lane knows nothing of the other lanes, so the bits of a row depend on
// that row, on what was carried and on the tile alone. (Milakov & Gimelshein 2018, section 3.1; Dao 2023, algorithm 1.)
#include "forward.h"

#include "fold.h"

namespace ringmpi {
namespace {

constexpr int64_t BLOCK_BYTES = 1 << 20;        // packed keys and values of one head; for each thread a head or more
constexpr int64_t LONGEST_BLOCK = 4096;         // keys
constexpr int64_t ROWS_WORTH_PACKING = 1024;    // rows that see a key
static_assert(TILE % ROWS == 0 && LONGEST_BLOCK % TILE == 0, "tiles are made of whole panels");

template <class T> class Attention {
  static constexpr int S = STRIP<T>;

 public:
  Attention(Forward& call, Engine& engine)
      : p_(call.problem),
        engine_(engine),
        poll_(p_.poll),
        rows_(call),
        fold_(p_),
        items_(reinterpret_cast<const Item*>(p_.work)),
        columns_(padded(p_.value_dim, ROWS)),
        strips_(rows_.strips()),
        block_(block_length()) {}

  // All work. False: the poll asked to stop.
  bool run() {
    sort_items();
    lying_ = worth_packing() ? 0 : p_.keys / TILE * TILE;
    const int64_t slabs = p_.batch * p_.key_heads, size = block_size();
    const int64_t most = engine_.pool().threads() * BLOCK_BYTES / (size * int64_t(sizeof(T)));
    const int64_t together = std::clamp<int64_t>(most, 1, slabs);
    T* const packed = engine_.packed.take<T>(together * size);
    for (Buffer& scratch : engine_.scratch) rows_.strip_in(scratch);  // so that no thread of the pool allocates
    for (int64_t first = 0; first < slabs; first += together)
      for (int64_t start = keys_from_ / block_ * block_; start < keys_to_; start += block_)
        attend_block(first, std::min(together, slabs - first), start, packed);
    p_.attended = attended_;
    return !poll_.stopped();
  }

 private:
  // Keys of a block: a function of the shapes and the dtype alone, as bits depend on it.
  int64_t block_length() const {
    const int64_t key_bytes = (p_.head_dim + columns_) * int64_t(sizeof(T));
    return std::clamp<int64_t>(BLOCK_BYTES / key_bytes / TILE * TILE, TILE, LONGEST_BLOCK);
  }
  // Scalars of a packed block, with room for its flags.
  int64_t block_size() const {
    return block_ * (p_.head_dim + columns_) + (p_.finite ? 0 : padded(block_, 64) / int64_t(sizeof(T)));
  }
  KeyBlock<T> block_in(T* packed, int64_t slab, int64_t start) const {
    T* const value = packed + block_ * p_.head_dim;
    char* const special = p_.finite ? nullptr : reinterpret_cast<char*>(value + block_ * columns_);
    return {packed, value, special, slab / p_.key_heads, slab % p_.key_heads, start, lying_ - start};
  }

  // Items by the strips that they touch, in table order; the range of keys that any of them names.
  void sort_items() {
    const int64_t g = p_.group();
    first_of_.assign(size_t(strips_) + 1, 0);
    const auto each = [&](auto visit) {
      for (int64_t i = 0; i < p_.items; ++i)
        for (int64_t s = items_[i].row_start * g / S; s * S < items_[i].row_stop * g; ++s) visit(s, i);
    };
    each([&](int64_t s, int64_t) { ++first_of_[size_t(s) + 1]; });
    for (size_t s = 0; s < size_t(strips_); ++s) first_of_[s + 1] += first_of_[s];
    items_of_.resize(size_t(first_of_[size_t(strips_)]));
    std::vector<int64_t> next(first_of_.begin(), first_of_.end() - 1);
    each([&](int64_t s, int64_t i) { items_of_[size_t(next[size_t(s)]++)] = i; });
    keys_from_ = p_.keys, keys_to_ = 0;
    for (int64_t i = 0; i < p_.items; ++i) {
      keys_from_ = std::min(keys_from_, items_[i].key_start);
      keys_to_ = std::max(keys_to_, items_[i].key_stop);
    }
  }

  // Whether the kernel cannot read keys and values where they lie, or so many rows see a key that copies pay. Bits are
  // the same either way.
  bool worth_packing() const {
    const auto lies = [&](const Array& array, int64_t dim) {
      bool good = p_.dtype == DTYPE<T> && lies_as<T>(array.data, array.stride[3]);
      for (int i = 0; i < 2; ++i) good = good && array.stride[i] % int64_t(sizeof(T)) == 0;
      return good && array.stride[2] == dim * int64_t(sizeof(T));
    };
    if (!p_.finite || p_.value_dim % ROWS || !lies(p_.k, p_.head_dim) || !lies(p_.v, p_.value_dim)) return true;
    int64_t pairs = 0;
    for (int64_t i = 0; i < p_.items; ++i) {
      const Item& item = items_[i];
      const Keys middle = keys_of(item, (item.row_start + item.row_stop) / 2);
      pairs += (item.row_stop - item.row_start) * p_.group() * std::max<int64_t>(middle.stop - middle.start, 0);
    }
    return pairs > ROWS_WORTH_PACKING * (keys_to_ - keys_from_);
  }

  // The keys from local key `start` on of `count` heads: packed by all threads, then attended to by all.
  void attend_block(int64_t first, int64_t count, int64_t start, T* packed) {
    const int64_t from = std::max(start, keys_from_ / TILE * TILE), to = std::min(start + block_, keys_to_);
    const int64_t unpacked = std::max(from, lying_), tiles = (to - unpacked + TILE - 1) / TILE;
    const auto block = [&](int64_t n) { return block_in(packed + n * block_size(), first + n, start); };
    const Job pack_tile = [&](int64_t task, int worker) {
      pack(block(task / tiles), unpacked - start + task % tiles * TILE, worker);
    };
    const Job attend_strip = [&](int64_t task, int worker) { attend(block(task / strips_), task % strips_, worker); };
    if (tiles > 0) engine_.pool().run(count * tiles, pack_tile, poll_);
    engine_.pool().run(count * strips_, attend_strip, poll_);
  }

  // One tile of keys and values, from key `at` of the block on.
  void pack(const KeyBlock<T>& block, int64_t at, int worker) {
    const int64_t b = block.batch, h = block.head, first = block.start + at;
    const int64_t count = std::min<int64_t>(TILE, p_.keys - first);
    T* const wide = rows_.strip_in(engine_.scratch[size_t(worker)]).wide;
    const auto key = [&](int64_t k, T* spare) {
      return read(p_.k.row(b, h, first + k), p_.k.stride[3], p_.head_dim, p_.dtype, spare);
    };
    const auto value = [&](int64_t k, T* spare) -> const T* {
      const char* const from = p_.v.row(b, h, first + k);
      if (!block.special) return read(from, p_.v.stride[3], p_.value_dim, p_.dtype, spare);
      widen(from, p_.v.stride[3], p_.value_dim, p_.dtype, spare);
      block.special[at + k] = clean(spare, p_.value_dim);
      return spare;
    };
    pack_rows(key, count, p_.head_dim, wide, block.key + at * p_.head_dim);
    pack_columns(value, count, TILE, p_.value_dim, wide, block.value + at * columns_);
  }

  // All keys of one block for one strip of rows.
  void attend(const KeyBlock<T>& block, int64_t number, int worker) {
    Strip<T> strip = rows_.strip_in(engine_.scratch[size_t(worker)]);
    const int64_t g = p_.group(), x = number * S;
    bool loaded = false;
    int64_t attended = 0;
    for (int64_t n = first_of_[size_t(number)]; n < first_of_[size_t(number) + 1]; ++n) {
      const Item& item = items_[items_of_[size_t(n)]];
      const int from = int(std::max<int64_t>(item.row_start * g - x, 0));
      const int to = int(std::min<int64_t>(item.row_stop * g - x, std::min<int64_t>(S, rows_.lanes() - x)));
      const Keys first = keys_of(item, (x + from) / g), last = keys_of(item, (x + to - 1) / g);
      if (from >= to || last.stop <= block.start || first.start >= block.start + block_) continue;
      if (!loaded) rows_.load(strip, block.batch, block.head, x, x + S * engine_.pool().threads()), loaded = true;
      rows_.describe(strip, item, from, to, block.start, block_);
      attended += attend_tiles(strip, from, to, {first.start - block.start, first.stop - block.start},
                               {last.start - block.start, last.stop - block.start}, block, worker);
    }
    if (loaded) rows_.store(strip);
    attended_ += attended;
  }

  // The tiles that lanes from ... to - 1 see, of which the first one sees keys `first`, the last one keys `last`.
  int64_t attend_tiles(Strip<T>& strip, int from, int to, Keys first, Keys last, const KeyBlock<T>& block, int worker) {
    const int64_t low = std::max<int64_t>(first.start, 0), high = std::min(last.stop, block_);
    int64_t attended = 0;
    for (int64_t tile = low / TILE * TILE; tile < high && !poll_.stopped(); tile += TILE) {
      const int64_t start = std::max(tile, low), stop = std::min(tile + TILE, high);
      const bool whole = from == 0 && to == strip.live && start % ROWS == 0 && stop % ROWS == 0;
      const bool uncut = whole && last.start <= start && first.stop >= stop;
      attended += fold_(strip, Cut{tile, from, to, uncut, {}, {}}, start, stop, block);
      if (worker == 0) poll_.breathe();
    }
    return attended;
  }

  Problem& p_;
  Engine& engine_;
  Poll poll_;
  const Rows<T> rows_;
  Fold<T> fold_;
  const Item* const items_;
  const int64_t columns_, strips_, block_;  // value_dim in whole panels; strips of rows; keys packed at once
  int64_t lying_ = 0;                       // keys that are read where they lie
  int64_t keys_from_ = 0, keys_to_ = 0;     // range of keys of all items
  std::vector<int64_t> first_of_, items_of_;
  std::atomic<int64_t> attended_{0};
};

}  // namespace

bool attend(Engine& engine, Forward& call) {
  return call.problem.dtype == FLOAT64 ? Attention<double>(call, engine).run() : Attention<float>(call, engine).run();
}

}  // namespace ringmpi
