//! Huffman tables that decode several symbols per look-up.

use std::ops::Range;

/// Longest code, in bits.
const LONGEST: usize = 16;
/// Index bits of an AC table. One fewer loses the gain of pairs; one more exceeds the cache.
pub(crate) const AC_BITS: u32 = 11;
/// Index bits of a DC table; covers all common codes.
pub(crate) const DC_BITS: u32 = 9;
/// Step of an end-of-block code: larger than any position, and than a run that leaves the block.
pub(crate) const END: u32 = 128;

/// Canonical Huffman code: shorter codes first, each one more than the last.
#[derive(Debug)]
pub(crate) struct CanonicalCode {
    /// By length: exclusive bound of the next 16 bits if their code is of this length or shorter.
    below: [u32; LONGEST + 1],
    /// By length: offset from a code to the index of its symbol.
    offsets: [i32; LONGEST + 1],
    symbols: [u8; 256],
    count: usize,
}

impl Default for CanonicalCode {
    fn default() -> Self {
        let lengths = [0; LONGEST + 1];
        CanonicalCode { below: lengths, offsets: lengths.map(|_| 0), symbols: [0; 256], count: 0 }
    }
}

impl CanonicalCode {
    /// `None` if there are more codes than their lengths allow, or fewer symbols than codes.
    fn read(definition: &[u8]) -> Option<CanonicalCode> {
        let (lengths, symbols) = definition.split_first_chunk::<LONGEST>()?;
        let mut table = CanonicalCode { count: symbols.len(), ..CanonicalCode::default() };
        table.symbols.get_mut(..symbols.len())?.copy_from_slice(symbols);
        let (mut code, mut index) = (0_u32, 0_i32);
        for (length, &count) in (1..).zip(lengths) {
            table.offsets[length] = index - code as i32;
            (code, index) = (code + u32::from(count), index + i32::from(count));
            if code > 1 << length {
                return None;
            }
            table.below[length] = code << (LONGEST - length);
            code <<= 1;
        }
        (index as usize == symbols.len()).then_some(table)
    }

    /// Calls `with` for every code of at most `longest` bits: the range of index values that begin with
    /// it, its length, and its symbol.
    fn each(&self, longest: u32, mut with: impl FnMut(Range<usize>, u32, u8)) {
        let mut start = 0;
        for (length, symbol) in self.lengths().zip(&self.symbols[..self.count]) {
            if length > longest {
                break;
            }
            let end = start + (1 << (longest - length));
            with(start..end, length, *symbol);
            start = end;
        }
    }

    /// The length of each code.
    fn lengths(&self) -> impl Iterator<Item = u32> {
        let codes = |length: u32| {
            let [shorter, this] = [length - 1, length].map(|length| self.below[length as usize]);
            (this - shorter) >> (LONGEST as u32 - length)
        };
        (1..=LONGEST as u32).flat_map(move |length| (0..codes(length)).map(move |_| length))
    }

    /// Length and symbol of the code at the start of the 16 bits `bits`.
    pub(crate) fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=LONGEST).find(|&length| bits < self.below[length])?;
        let index = (bits >> (LONGEST - length)) as i32 + self.offsets[length];
        let symbols = &self.symbols[..self.count];
        Some((length as u32, *symbols.get(usize::try_from(index).ok()?)?))
    }
}

/// Value of a coefficient of `size` bits, at most 15 (ITU-T T.81, F.2.2.1).
#[inline(always)]
pub(crate) fn extend(bits: u32, size: u32) -> i16 {
    let negative = bits < (1 << size) >> 1;
    (bits as i32 - if negative { (1 << size) - 1 } else { 0 }) as i16
}

/// Codes of DC differences.
#[derive(Debug)]
pub(crate) struct DcTable {
    /// By the next bits: length and size, or 0 for longer codes.
    short: [[u8; 2]; 1 << DC_BITS],
    pub(crate) canonical: CanonicalCode,
}

impl Default for DcTable {
    fn default() -> Self {
        DcTable { short: [[0; 2]; 1 << DC_BITS], canonical: CanonicalCode::default() }
    }
}

impl DcTable {
    #[inline(always)]
    pub(crate) fn short(&self, bits: u64) -> [u8; 2] {
        self.short[bits as usize & ((1 << DC_BITS) - 1)]
    }
}

/// Result of one look-up: two codes, one, or none that fits the index.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct CodePair {
    /// Bits of both codes, or 0 if the next code and its value exceed the index.
    pub(crate) bits: u8,
    /// Bits of the first code. If none fits with its value: bits of the code alone, or 0 if it is longer.
    pub(crate) first_bits: u8,
    /// Positions that each code advances. If none fits: the symbol of the code.
    pub(crate) steps: [u8; 2],
    /// Coefficients of the codes. Without a second code, the first one twice.
    pub(crate) values: [i16; 2],
}

/// Codes of AC coefficients.
#[derive(Debug)]
pub(crate) struct AcTable {
    pairs: Box<[CodePair; 1 << AC_BITS]>,
    pub(crate) canonical: CanonicalCode,
}

impl Default for AcTable {
    fn default() -> Self {
        let pairs = Box::new([CodePair::default(); 1 << AC_BITS]);
        AcTable { pairs, canonical: CanonicalCode::default() }
    }
}

impl AcTable {
    #[inline(always)]
    pub(crate) fn pair(&self, bits: u64) -> CodePair {
        self.pairs[bits as usize & ((1 << AC_BITS) - 1)]
    }

    /// Extends each entry by the code that follows, if that fits as well.
    fn pair_up(&mut self) {
        for bits in 0..self.pairs.len() {
            let pair = self.pairs[bits];
            if pair.bits == 0 || u32::from(pair.steps[0]) == END {
                continue;
            }
            let next = self.pair((bits << pair.bits) as u64);
            let both = pair.bits + next.first_bits;
            if next.bits > 0 && u32::from(both) <= AC_BITS {
                let to = &mut self.pairs[bits];
                (to.bits, to.steps[1], to.values[1]) = (both, next.steps[0], next.values[0]);
            }
        }
    }
}

/// A code of `length` bits with its value, if both fit in the index `bits`.
fn single(bits: usize, length: u32, symbol: u8) -> Option<CodePair> {
    let (run, size) = (symbol >> 4, u32::from(symbol & 15));
    let behind = AC_BITS.checked_sub(length + size)?;
    let value = extend((bits >> behind) as u32 & ((1 << size) - 1), size);
    let step = match (size, run) {
        (0, 15) => 16,
        (0, _) => END as u8,
        _ => run + 1,
    };
    let all = (length + size) as u8;
    Some(CodePair { bits: all, first_bits: all, steps: [step, 0], values: [value; 2] })
}

/// A decoding table built from its definition.
pub(crate) trait HuffmanTable: Default {
    /// Builds the table. `None` if the definition is invalid; the content is then undefined.
    fn fill(&mut self, definition: &[u8]) -> Option<()>;
}

impl HuffmanTable for DcTable {
    fn fill(&mut self, definition: &[u8]) -> Option<()> {
        self.canonical = CanonicalCode::read(definition)?;
        self.short.fill([0; 2]);
        self.canonical.each(DC_BITS, |entries, length, size| {
            self.short[entries].fill([length as u8, size]);
        });
        Some(())
    }
}

impl HuffmanTable for AcTable {
    fn fill(&mut self, definition: &[u8]) -> Option<()> {
        self.canonical = CanonicalCode::read(definition)?;
        self.pairs.fill(CodePair::default());
        self.canonical.each(AC_BITS, |entries, length, symbol| {
            for bits in entries {
                let code = CodePair {
                    first_bits: length as u8,
                    steps: [symbol, 0],
                    ..CodePair::default()
                };
                self.pairs[bits] = single(bits, length, symbol).unwrap_or(code);
            }
        });
        self.pair_up();
        Some(())
    }
}

/// A table slot. The table is rebuilt only if an image defines it differently from the last one.
#[derive(Debug, Default)]
pub(crate) struct HuffmanSlot<T> {
    definition: Vec<u8>,
    is_table: bool,
    table: T,
}

impl<T: HuffmanTable> HuffmanSlot<T> {
    pub(crate) fn define(&mut self, definition: &[u8]) {
        if self.definition != definition {
            self.is_table = self.table.fill(definition).is_some();
            self.definition.clear();
            self.definition.extend_from_slice(definition);
        }
    }

    pub(crate) fn table(&self) -> Option<&T> {
        self.is_table.then_some(&self.table)
    }
}
