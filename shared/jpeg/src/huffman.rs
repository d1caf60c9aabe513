//! Huffman tables for looking up several things at once.

/// Longest code, in bits.
const LONGEST: usize = 16;
/// Bits that index a table of AC codes. One fewer loses what pairs gain, one more costs the cache.
pub(crate) const AC_BITS: u32 = 11;
/// Bits that index a table of DC codes: all of the usual ones.
pub(crate) const DC_BITS: u32 = 9;
/// How far the end of a block goes: beyond every position in it, and than a run may go beyond it.
pub(crate) const END: u32 = 128;

/// A code as JPEG defines them: shorter ones first, each one more than the last.
#[derive(Debug, Default)]
pub(crate) struct Canonical {
    /// By length: what the first 16 bits are below, if a code is of this length or shorter.
    below: [u32; LONGEST + 1],
    /// By length: added to a code, the index of its symbol.
    offsets: [i32; LONGEST + 1],
    symbols: Vec<u8>,
}

impl Canonical {
    /// `None` if there are more codes than bits for them, or no symbols for codes.
    fn read(definition: &[u8]) -> Option<Canonical> {
        let (lengths, symbols) = definition.split_first_chunk::<LONGEST>()?;
        let mut table = Canonical { symbols: symbols.to_vec(), ..Canonical::default() };
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
        (index as usize == symbols.len() && symbols.len() <= 256).then_some(table)
    }

    /// Length and symbol of the code that `bits`, 16 of them, begin with.
    pub(crate) fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=LONGEST).find(|&length| bits < self.below[length])?;
        let index = (bits >> (LONGEST - length)) as i32 + self.offsets[length];
        Some((length as u32, *self.symbols.get(usize::try_from(index).ok()?)?))
    }
}

/// What a coefficient of `size` bits is (ITU-T T.81, F.2.2.1). `size` is at most 15.
#[inline(always)]
pub(crate) fn extend(bits: u32, size: u32) -> i16 {
    let negative = bits < (1 << size) >> 1;
    (bits as i32 - if negative { (1 << size) - 1 } else { 0 }) as i16
}

/// Codes of differences between the means of blocks.
#[derive(Debug)]
pub(crate) struct Dc {
    /// By the next bits: length and size, or 0 if the code is longer.
    short: [[u8; 2]; 1 << DC_BITS],
    pub(crate) canonical: Canonical,
}

impl Dc {
    #[inline(always)]
    pub(crate) fn short(&self, bits: u64) -> [u8; 2] {
        self.short[bits as usize & ((1 << DC_BITS) - 1)]
    }
}

/// What the next bits of a block say: one code, two, or none.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct Pair {
    /// Bits of both, or 0 if the next code and its value are longer than the index.
    pub(crate) bits: u8,
    /// Bits of the first.
    pub(crate) first_bits: u8,
    /// By how much each moves on in the block.
    pub(crate) steps: [u8; 2],
    /// The coefficients that stand where they move to. If there is no second, it is the first again.
    pub(crate) values: [i16; 2],
}

/// Codes of the other coefficients.
#[derive(Debug)]
pub(crate) struct Ac {
    pairs: Box<[Pair; 1 << AC_BITS]>,
    pub(crate) canonical: Canonical,
}

impl Ac {
    #[inline(always)]
    pub(crate) fn pair(&self, bits: u64) -> Pair {
        self.pairs[bits as usize & ((1 << AC_BITS) - 1)]
    }
}

/// A table that is made from its definition.
pub(crate) trait Table: Sized {
    fn build(definition: &[u8]) -> Option<Self>;
}

impl Table for Dc {
    fn build(definition: &[u8]) -> Option<Dc> {
        let canonical = Canonical::read(definition)?;
        let mut short = [[0; 2]; 1 << DC_BITS];
        for (bits, to) in (0..).zip(&mut short) {
            if let Some((length, size)) = canonical.find(bits << (16 - DC_BITS))
                && length <= DC_BITS
            {
                *to = [length as u8, size];
            }
        }
        Some(Dc { short, canonical })
    }
}

impl Table for Ac {
    fn build(definition: &[u8]) -> Option<Ac> {
        let canonical = Canonical::read(definition)?;
        let mut pairs = Box::new([Pair::default(); 1 << AC_BITS]);
        for (bits, to) in (0..).zip(pairs.iter_mut()) {
            *to = single(&canonical, bits).unwrap_or_default();
        }
        // From behind, for what follows a code stands further to the front only where it is itself.
        let singles = pairs.clone();
        for (bits, pair) in pairs.iter_mut().enumerate() {
            let end = u32::from(pair.steps[0]) == END;
            if pair.bits == 0 || end {
                continue;
            }
            let next = singles[bits << pair.bits & ((1 << AC_BITS) - 1)];
            if next.bits > 0 && u32::from(pair.bits + next.bits) <= AC_BITS {
                pair.bits += next.bits;
                pair.steps[1] = next.steps[0];
                pair.values[1] = next.values[0];
            }
        }
        Some(Ac { pairs, canonical })
    }
}

/// The code at the start of `bits`, if it and its value are all there.
fn single(canonical: &Canonical, bits: u32) -> Option<Pair> {
    let (length, symbol) = canonical.find(bits << (16 - AC_BITS))?;
    let (run, size) = (symbol >> 4, u32::from(symbol & 15));
    let bits_left = AC_BITS.checked_sub(length + size)?;
    let value = extend(bits >> bits_left & ((1 << size) - 1), size);
    let step = match (size, run) {
        (0, 15) => 16,
        (0, _) => END as u8,
        _ => run + 1,
    };
    let all = (length + size) as u8;
    Some(Pair { bits: all, first_bits: all, steps: [step, 0], values: [value; 2] })
}

/// The table of a slot, kept while images define it alike, as those of one encoder do.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    definition: Vec<u8>,
    table: Option<T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { definition: Vec::new(), table: None }
    }
}

impl<T: Table> Slot<T> {
    pub(crate) fn define(&mut self, definition: &[u8]) {
        if self.definition != definition {
            self.table = T::build(definition);
            self.definition.clear();
            self.definition.extend_from_slice(definition);
        }
    }

    pub(crate) fn table(&self) -> Option<&T> {
        self.table.as_ref()
    }
}
