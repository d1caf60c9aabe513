//! Decompresses a row of frames in steps, and tells where it could be taken up again.

use super::{
    FrameKind, Point, UNSOUND_BYTES, UNSOUND_BZIP2_BYTES,
    xz::{self, XzStructure},
};
use std::{collections::VecDeque, mem, ops::Range};
use zstd::stream::raw::{DParameter, InBuffer, Operation, OutBuffer};

/// Bytes that a step makes, at most.
const STEP_BYTES: usize = 128 << 10;
/// Most that a file may unpack to: well beyond any shard, and minutes of work.
const MAX_UNPACKED_BYTES: u64 = 64 << 30;
/// The largest window of zstd, as a power of two: 128 MiB.
const ZSTD_WINDOW_LOG: u32 = 27;
/// The largest dictionary of xz, with room for the decoder's state.
const XZ_MEMORY_BYTES: u64 = (64 << 20) + (1 << 20);

/// A file some of whose bytes have been read.
pub(super) struct FrameDecoder {
    kind: FrameKind,
    state: State,
    /// Places where frames and blocks begin, which nobody has taken.
    points: Vec<Point>,
    out: Box<[u8]>,
    packed: u64,
    unpacked: u64,
    /// The unpacked byte with which the frame or block at hand begins: all before it has been checked.
    frame: u64,
    /// Those of blocks that are to come.
    blocks: VecDeque<u64>,
    is_unlike_its_checksum: bool,
    /// The damage behind what the last step made.
    damage: Option<String>,
}

enum State {
    /// Between frames, or before the first.
    Between,
    Zstd(zstd::stream::raw::Decoder<'static>),
    Bzip2(bzip2::Decompress),
    Xz(Box<XzStream>),
}

/// A stream of xz from its start, or from one of its blocks.
struct XzStream {
    decoder: liblzma::stream::Stream,
    structure: XzStructure,
    /// The decoder has begun with a block in the middle, and so cannot check the list of blocks at the end.
    is_resumed: bool,
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrameStep {
    /// This part of the output was written; see [`FrameDecoder::made`].
    Made(Range<usize>),
    /// All input has been used.
    Hungry,
}

/// The work of a decoder's call.
struct Progress {
    used: usize,
    made: usize,
    is_ended: bool,
    /// The fault that follows it.
    damage: Option<String>,
}

impl Progress {
    /// The damage alone, if nothing was made before it.
    fn checked(self) -> Result<Self, String> {
        match self.damage {
            Some(damage) if self.made == 0 => Err(damage),
            _ => Ok(self),
        }
    }
}

impl std::fmt::Debug for FrameDecoder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("FrameDecoder");
        out.field("packed", &self.packed).field("unpacked", &self.unpacked).finish_non_exhaustive()
    }
}

impl FrameDecoder {
    /// At a point of a file.
    pub(super) fn resume(kind: FrameKind, point: &Point) -> Self {
        let state = match point.check.map(|check| XzStream::resume(point, check)) {
            Some(Ok(stream)) => State::Xz(Box::new(stream)),
            // A decoder that cannot be made is reported by the first step.
            Some(Err(_)) | None => State::Between,
        };
        let Point { packed, unpacked, .. } = *point;
        let out = vec![0; STEP_BYTES].into();
        FrameDecoder {
            kind,
            state,
            points: Vec::new(),
            out,
            packed,
            unpacked,
            frame: unpacked,
            blocks: VecDeque::new(),
            is_unlike_its_checksum: false,
            damage: None,
        }
    }

    pub(super) fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Bytes that have gone in, from the start of the file.
    pub(super) fn packed(&self) -> u64 {
        self.packed
    }

    /// Bytes that have come out, from the start of the file.
    pub(super) fn unpacked(&self) -> u64 {
        self.unpacked
    }

    /// Bytes that have come out and are right for certain, if damage was met now: it may lie before the place where it
    /// shows, and anywhere in a frame of zstd whose checksum does not match.
    pub(super) fn sound_bytes(&self) -> u64 {
        let unsound = match self.state {
            State::Between => 0,
            State::Bzip2(_) => UNSOUND_BZIP2_BYTES,
            State::Zstd(_) if self.is_unlike_its_checksum => self.unpacked,
            State::Zstd(_) | State::Xz(_) => UNSOUND_BYTES,
        };
        self.unpacked.saturating_sub(unsound).max(self.frame)
    }

    /// Whether the file may end here.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::Between)
    }

    /// The bytes that a step wrote.
    pub(super) fn made(&self, range: Range<usize>) -> &[u8] {
        &self.out[range]
    }

    /// The points that have been passed.
    pub(super) fn take_points(&mut self) -> Vec<Point> {
        mem::take(&mut self.points)
    }

    /// Takes bytes off the start of `input` until there is something to tell.
    ///
    /// # Errors
    /// The damage that was found.
    pub(super) fn step(&mut self, input: &mut &[u8]) -> Result<FrameStep, String> {
        if let Some(damage) = self.damage.take() {
            return Err(damage);
        }
        loop {
            if let State::Between = self.state {
                // Tapes have zeros after the last frame, and xz may have some between streams.
                let zeros = input.iter().take_while(|byte| **byte == 0 && self.packed > 0).count();
                *input = &input[zeros..];
                self.packed += zeros as u64;
                if input.is_empty() {
                    return Ok(FrameStep::Hungry);
                }
                self.begin(input)?;
            }
            let known = self.points.len();
            let progress = self.decode(input);
            self.blocks.extend(self.points[known..].iter().map(|point| point.unpacked));
            let Progress { used, made, is_ended, damage } = progress?;
            self.damage = damage;
            *input = &input[used..];
            self.packed += used as u64;
            self.unpacked += made as u64;
            while let Some(block) = self.blocks.pop_front_if(|block| *block < self.unpacked) {
                self.frame = block;
            }
            if self.unpacked > MAX_UNPACKED_BYTES {
                return Err(format!(
                    "it unpacks to more than {MAX_UNPACKED_BYTES} bytes, the limit"
                ));
            }
            if is_ended {
                self.state = State::Between;
            }
            match (made, used) {
                (0, 0) if !is_ended && input.is_empty() => return Ok(FrameStep::Hungry),
                (0, 0) if !is_ended => return Err("its compressed data is damaged".into()),
                (0, _) => {}
                (made, _) => return Ok(FrameStep::Made(0..made)),
            }
        }
    }

    /// Begins with a frame, whose first bytes are `input`.
    fn begin(&mut self, input: &[u8]) -> Result<(), String> {
        let point = Point { packed: self.packed, unpacked: self.unpacked, check: None };
        let failed = |error: &dyn std::fmt::Display| format!("no decoder can be made: {error}");
        self.state = match self.kind {
            FrameKind::Zstd => {
                let decoder = zstd::stream::raw::Decoder::new().and_then(|mut decoder| {
                    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                    Ok(decoder)
                });
                State::Zstd(decoder.map_err(|error| failed(&error))?)
            }
            FrameKind::Bzip2 => State::Bzip2(bzip2::Decompress::new(false)),
            // The decoder would wait for a whole header.
            FrameKind::Xz if input[0] != 0xfd => {
                return Err(xz_fault(&liblzma::stream::Error::Format));
            }
            FrameKind::Xz => State::Xz(Box::new(XzStream::new(&point)?)),
        };
        self.frame = point.unpacked;
        self.points.push(point);
        Ok(())
    }

    fn decode(&mut self, input: &[u8]) -> Result<Progress, String> {
        match &mut self.state {
            State::Between => Ok(Progress { used: 0, made: 0, is_ended: true, damage: None }),
            State::Zstd(decoder) => {
                let mut from = InBuffer::around(input);
                let mut to = OutBuffer::around(&mut self.out[..]);
                let left = decoder.run(&mut from, &mut to).map_err(|error| {
                    self.is_unlike_its_checksum = error.to_string().contains("checksum");
                    zstd_fault(&error)
                })?;
                let (used, made) = (from.pos(), to.pos());
                Ok(Progress { used, made, is_ended: left == 0, damage: None })
            }
            State::Bzip2(decoder) => {
                let before = (decoder.total_in(), decoder.total_out());
                let status = decoder.decompress(input, &mut self.out);
                let damage = status.as_ref().err().map(|error| match error {
                    bzip2::Error::DataMagic => "no stream of bzip2 begins here".to_owned(),
                    _ => "its compressed data is damaged".to_owned(),
                });
                let progress = Progress {
                    used: (decoder.total_in() - before.0) as usize,
                    made: (decoder.total_out() - before.1) as usize,
                    is_ended: matches!(status, Ok(bzip2::Status::StreamEnd)),
                    damage,
                };
                progress.checked()
            }
            State::Xz(stream) => stream.decode(input, self.packed, &mut self.out, &mut self.points),
        }
    }
}

fn zstd_fault(error: &std::io::Error) -> String {
    let what = error.to_string();
    if what.contains("too much memory") {
        "its window is larger than 128 MiB, the limit: compress it with --long=27 or less".into()
    } else if what.contains("Unknown frame descriptor") {
        "no frame of zstd begins here".into()
    } else {
        format!("its compressed data is damaged: {}", what.to_lowercase())
    }
}

impl XzStream {
    /// At the start of a stream.
    fn new(point: &Point) -> Result<Self, String> {
        let flags = liblzma::stream::TELL_UNSUPPORTED_CHECK;
        let decoder = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES, flags);
        let decoder = decoder.map_err(|error| xz_fault(&error))?;
        let structure = XzStructure::new(point.packed, point.unpacked);
        Ok(XzStream { decoder, structure, is_resumed: false })
    }

    /// At a block: the decoder is given the header of its stream first.
    fn resume(point: &Point, check: u8) -> Result<Self, String> {
        let mut stream = Self::new(point)?;
        let run = liblzma::stream::Action::Run;
        let given = stream.decoder.process(&xz::header(check), &mut [], run);
        given.map_err(|error| xz_fault(&error))?;
        let structure = XzStructure::at_block(point.packed, point.unpacked, check);
        Ok(XzStream { structure, is_resumed: true, ..stream })
    }

    fn decode(
        &mut self,
        input: &[u8],
        packed: u64,
        out: &mut [u8],
        points: &mut Vec<Point>,
    ) -> Result<Progress, String> {
        self.structure.follow(input, packed, points);
        let mut part = input;
        if let (true, Some(list)) = (self.is_resumed, self.structure.list_start()) {
            part = &input[..input.len().min(list.saturating_sub(packed) as usize)];
        }
        let before = (self.decoder.total_in(), self.decoder.total_out());
        let status = self.decoder.process(part, out, liblzma::stream::Action::Run);
        let damage = status.as_ref().err().map(xz_fault);
        let mut used = (self.decoder.total_in() - before.0) as usize;
        let made = (self.decoder.total_out() - before.1) as usize;
        let mut is_ended = matches!(status, Ok(liblzma::stream::Status::StreamEnd));
        if damage.is_none()
            && self.is_resumed
            && part.len() < input.len()
            && used == part.len()
            && made == 0
        {
            // All blocks have been read: their list is passed over.
            let end = self.structure.end();
            used = end.map_or(input.len(), |end| input.len().min((end - packed) as usize));
            is_ended = end == Some(packed + used as u64);
        }
        Progress { used, made, is_ended, damage }.checked()
    }
}

fn xz_fault(error: &liblzma::stream::Error) -> String {
    use liblzma::stream::Error;
    match error {
        Error::MemLimit => {
            "its dictionary is larger than 64 MiB, the limit: compress it with xz -9 or less".into()
        }
        Error::Format => "no stream of xz begins here".into(),
        Error::Options => "it uses filters of xz that are not known".into(),
        Error::UnsupportedCheck => "it uses a check of xz that is not known".into(),
        _ => "its compressed data is damaged".into(),
    }
}
