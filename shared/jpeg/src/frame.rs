//! Headers before an image's entropy-coded data (ITU-T T.81, annex B).

/// Zigzag position to row-major position; positions beyond the block map outside it.
pub(crate) static NATURAL: [u8; 256] = {
    let mut natural = [64; 256];
    let (mut row, mut column, mut at) = (0_usize, 0_usize, 0);
    while at < 64 {
        natural[at] = (row * 8 + column) as u8;
        let up = (row + column).is_multiple_of(2);
        match (up, row, column) {
            (true, _, 7) => row += 1,
            (true, 0, _) => column += 1,
            (true, ..) => (row, column) = (row - 1, column + 1),
            (false, 7, _) => column += 1,
            (false, _, 0) => row += 1,
            (false, ..) => (row, column) = (row + 1, column - 1),
        }
        at += 1;
    }
    natural
};

/// Samples per side of a block.
pub(crate) const SIDE: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JpegComponent {
    id: u8,
    /// Blocks per coded unit (MCU), across and down.
    pub(crate) across: usize,
    pub(crate) down: usize,
    quantisation: usize,
    /// Indices of its Huffman tables.
    pub(crate) dc: usize,
    pub(crate) ac: usize,
}

/// Headers of an image that [`JpegDecoder`](crate::JpegDecoder) may decode.
#[derive(Debug)]
pub struct JpegHeaders<'a> {
    pub height: usize,
    pub width: usize,
    components: [JpegComponent; 3],
    count: usize,
    /// Quantisation tables, row-major.
    quantisation: [Option<[u16; 64]>; 4],
    /// Huffman table definitions: the number of codes of each length, then their symbols.
    pub(crate) dc: [Option<&'a [u8]>; 4],
    pub(crate) ac: [Option<&'a [u8]>; 4],
    /// Units between restart markers, or 0.
    pub(crate) restart: usize,
    /// Bytes from the first entropy-coded one.
    pub(crate) scan: &'a [u8],
}

/// Colour space of three components (as libjpeg decides, jdapimin.c).
#[derive(Default)]
struct Colours {
    jfif: bool,
    /// Transform of Adobe's marker.
    transform: Option<u8>,
}

impl<'a> JpegHeaders<'a> {
    /// Parses the markers up to the first scan. `None` for images that this crate does not decode.
    pub fn find(jpeg: &'a [u8]) -> Option<JpegHeaders<'a>> {
        if !jpeg.starts_with(&[0xff, 0xd8]) {
            return None;
        }
        let mut frame = JpegHeaders {
            height: 0,
            width: 0,
            components: Default::default(),
            count: 0,
            quantisation: [None; 4],
            dc: [None; 4],
            ac: [None; 4],
            restart: 0,
            scan: &[],
        };
        let (mut at, mut colours) = (2, Colours::default());
        loop {
            let [0xff, marker, high, low] = *jpeg.get(at..)?.first_chunk()? else { return None };
            let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
            let segment = jpeg.get(at + 4..end)?;
            match marker {
                0xc0 | 0xc1 if frame.count == 0 => frame.read_frame(segment)?,
                0xc4 => frame.read_huffman(segment)?,
                0xda => {
                    frame.read_scan(segment)?;
                    frame.scan = &jpeg[end..];
                    return (frame.count == 1 || colours.are_ycbcr(&frame)).then_some(frame);
                }
                0xdb => frame.read_quantisation(segment)?,
                0xdd => frame.restart = u16::from_be_bytes(segment.try_into().ok()?).into(),
                // libjpeg takes no shorter marker for JFIF's.
                0xe0 => colours.jfif |= segment.len() >= 14 && segment.starts_with(b"JFIF\0"),
                0xee => colours.read_adobe(segment),
                0xe1..=0xef | 0xfe => {}
                // Progressive, lossless or arithmetic coding, a second frame, or a rare marker.
                _ => return None,
            }
            at = end;
        }
    }

    pub(crate) fn components(&self) -> &[JpegComponent] {
        &self.components[..self.count]
    }

    pub(crate) fn quantisation(&self, component: &JpegComponent) -> Option<&[u16; 64]> {
        self.quantisation.get(component.quantisation)?.as_ref()
    }

    /// Height and width of a coded unit in samples.
    pub(crate) fn unit(&self) -> [usize; 2] {
        // The first component has the most samples.
        [self.components[0].down * SIDE, self.components[0].across * SIDE]
    }

    fn read_frame(&mut self, segment: &[u8]) -> Option<()> {
        let (&[8, h1, h0, w1, w0, count], components) = segment.split_first_chunk()? else {
            return None;
        };
        self.height = u16::from_be_bytes([h1, h0]).into();
        self.width = u16::from_be_bytes([w1, w0]).into();
        self.count = usize::from(count);
        if self.height == 0 || self.width == 0 || components.len() != self.count * 3 {
            return None;
        }
        let (components, _) = components.as_chunks::<3>();
        for (to, &[id, factors, quantisation]) in self.components.iter_mut().zip(components) {
            let (across, down) = (usize::from(factors >> 4), usize::from(factors & 15));
            let quantisation = usize::from(quantisation);
            *to = JpegComponent { id, across, down, quantisation, ..JpegComponent::default() };
        }
        let factors = self.components.map(|component| (component.across, component.down));
        match (self.count, factors) {
            // A single component is coded block by block, regardless of its factors.
            (1, [(1..=4, 1..=4), ..]) => {
                (self.components[0].across, self.components[0].down) = (1, 1)
            }
            (3, [(1 | 2, 1) | (2, 2), (1, 1), (1, 1)]) => {}
            _ => return None,
        }
        // libjpeg does not interpolate between fewer than three samples.
        (self.count == 1 || self.width.div_ceil(self.components[0].across) > 2).then_some(())
    }

    fn read_huffman(&mut self, mut segment: &'a [u8]) -> Option<()> {
        while let Some((&which, definition)) = segment.split_first() {
            let lengths = definition.first_chunk::<16>()?;
            let bytes = 16 + lengths.iter().map(|&count| usize::from(count)).sum::<usize>();
            let tables = match which >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return None,
            };
            *tables.get_mut(usize::from(which & 15))? = Some(definition.get(..bytes)?);
            segment = &definition[bytes..];
        }
        Some(())
    }

    fn read_quantisation(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&which, values)) = segment.split_first() {
            let bytes = match which >> 4 {
                0 => 1,
                1 => 2,
                _ => return None,
            };
            let (zigzag, rest) = values.split_at_checked(64 * bytes)?;
            let mut table = [0; 64];
            for (value, &to) in zigzag.chunks_exact(bytes).zip(&NATURAL) {
                let value = value.iter().fold(0, |high, &low| high << 8 | u16::from(low));
                table[usize::from(to)] = value;
            }
            *self.quantisation.get_mut(usize::from(which & 15))? = Some(table);
            segment = rest;
        }
        Some(())
    }

    /// Accepts one scan of all components in the frame's order with all coefficients.
    fn read_scan(&mut self, segment: &[u8]) -> Option<()> {
        let (&count, segment) = segment.split_first()?;
        let (tables, rest) = segment.split_at_checked(self.count * 2)?;
        if self.count == 0 || usize::from(count) != self.count || rest != [0, 63, 0] {
            return None;
        }
        let (tables, _) = tables.as_chunks::<2>();
        for (component, &[id, which]) in self.components.iter_mut().zip(tables) {
            if component.id != id {
                return None;
            }
            (component.dc, component.ac) = (usize::from(which >> 4), usize::from(which & 15));
        }
        Some(())
    }
}

impl Colours {
    fn read_adobe(&mut self, segment: &[u8]) {
        // A longer marker counts too, as in libjpeg.
        if segment.starts_with(b"Adobe")
            && let Some(transform) = segment.get(11)
        {
            self.transform = Some(*transform);
        }
    }

    /// Whether all of libjpeg's rules agree on YCbCr.
    fn are_ycbcr(&self, frame: &JpegHeaders<'_>) -> bool {
        let numbered = frame.components.map(|component| component.id) == [1, 2, 3];
        match self.transform {
            Some(transform) => transform == 1 && (self.jfif || numbered),
            None => self.jfif || numbered,
        }
    }
}
