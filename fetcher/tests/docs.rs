//! The manual names the flags of `gristmill-fetcher` as they are.

#[test]
fn the_manual_has_every_flag() {
    gristmill_tests::assert_documented(
        "gristmill-fetcher",
        env!("CARGO_BIN_EXE_gristmill-fetcher"),
    );
}
