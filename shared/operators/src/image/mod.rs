//! Operators on images.

pub(crate) mod center_crop;
pub(crate) mod color_jitter;
pub(crate) mod crop;
pub(crate) mod decode;
pub(crate) mod flip;
pub(crate) mod gaussian_blur;
pub(crate) mod grayscale;
pub(crate) mod pad;
pub(crate) mod posterize;
pub(crate) mod random_crop;
pub(crate) mod random_erasing;
pub(crate) mod random_resized_crop;
pub(crate) mod resize;
pub(crate) mod resize_shorter;
pub(crate) mod rotate;
pub(crate) mod shear;
pub(crate) mod solarize;
pub(crate) mod turn;
pub(crate) mod vertical_flip;
