// The translation of addresses, ahead of the reads that need it.
// Part of isa.cc: included inside the namespace of one instruction set, behind its vectors.

// Under a hypervisor that gives out small pages the processor translates page by page, however large the guest's are.
constexpr size_t kPageBytes = 4096;

// Asks for one line of each page of [p, p + bytes): a page's first read waits for its translation, but many pages'
// walks run side by side. For what lies scattered: weights, which are one stream, lose by it (docs/performance.md).
SF_INLINE void touch_pages(const uint8_t* p, size_t bytes) {
  for (size_t c = 0; c < bytes; c += kPageBytes) prefetch(p + c);
}
