//! The manual names the commands and flags of `gristmill` as they are.

#[test]
fn the_manual_has_every_command() {
    gristmill_tests::assert_documented("gristmill", env!("CARGO_BIN_EXE_gristmill"));
}
