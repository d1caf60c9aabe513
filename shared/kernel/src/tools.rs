//! Buffers that kernels share and reuse from element to element.

use crate::FieldCell;
use std::any::{Any, TypeId};

/// Scratch memory of one thread. What it holds has no effect on results.
#[derive(Debug, Default)]
pub struct KernelScratch {
    /// Bytes in a form that only one operator knows.
    pub pixels: Vec<u8>,
    /// An image between two operators that run as one step.
    pub image: Vec<u8>,
    /// Values of 16 bits.
    pub shorts: Vec<u16>,
    /// Values of 32 bits.
    pub floats: Vec<f32>,
    /// Ends of the values that stand one after the other in `pixels`.
    pub ends: Vec<usize>,
    /// Values found in one, before they become fields.
    pub found: Vec<FieldCell>,
    /// Height and width of the image that the last operator on images was given.
    pub source: [usize; 2],
    /// State of single kernels, such as a decoder's tables.
    pub state: KernelState,
}

/// One value of each type that kernels ask for: decoders and the like, whose construction costs more
/// than their use.
#[derive(Debug, Default)]
pub struct KernelState {
    // Few types: a scan costs less than a hash.
    values: Vec<(TypeId, Box<dyn Any + Send>)>,
}

impl KernelState {
    /// The value of type `T`, made by its default when it is asked for first.
    pub fn get<T: Any + Default + Send>(&mut self) -> &mut T {
        let id = TypeId::of::<T>();
        let found = self.values.iter().position(|(other, _)| *other == id);
        let index = found.unwrap_or_else(|| {
            self.values.push((id, Box::<T>::default()));
            self.values.len() - 1
        });
        let value = self.values[index].1.downcast_mut();
        value.expect("a value is stored under the identifier of its type")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value_that_stays() {
        let mut state = KernelState::default();
        state.get::<Vec<u8>>().push(1);
        *state.get::<u32>() += 5;
        state.get::<Vec<u8>>().push(2);
        assert_eq!(*state.get::<Vec<u8>>(), [1, 2]);
        assert_eq!(*state.get::<u32>(), 5);
    }
}
