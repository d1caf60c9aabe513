# The commands one uses. `just` lists them; each is short enough to type without just.

_list:
    @just --list --unsorted

# train (synthetically) on generated JPEGs through the whole system
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# build every program
build:
    cargo build --release --workspace

# format (also modules that a macro declares), lint and check the rules of the project
check:
    find cli examples fetcher functions fuzz local python shared sim tests -name target -prune -o -name '*.rs' -exec rustfmt --edition 2024 --check {} +
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --package gristmill-tests

# all tests, or those of one crate: just test gristmill-model
test *CRATES:
    cargo test --release {{ if CRATES == "" { "--workspace" } else { "--package " + CRATES } }}

# the Python package, as a user installs it: just python --quick
python *ARGS:
    scripts/test-python {{ARGS}}

# everything a change must pass
ci:
    .ci/run

# the production code in simulated environments full of faults
simulate SEEDS="10000":
    scripts/simulate-faults --seeds {{SEEDS}}

# faults for real processes
chaos MINUTES="3":
    scripts/chaos --minutes {{MINUTES}}

# CPU per sample of whole pipelines
bench *ARGS:
    cargo run --release -- bench pipelines {{ARGS}}

# write docs/commands.md anew from the programs' --help
commands:
    GRISTMILL_WRITE_GOLDEN=1 cargo test --package gristmill --test docs
    GRISTMILL_WRITE_GOLDEN=1 cargo test --package gristmill-fetcher --test docs

# write the tables of operators and sources in docs/ anew from their declarations
tables:
    GRISTMILL_WRITE_DOCS=1 cargo test --package gristmill-operators --test declared
    GRISTMILL_WRITE_DOCS=1 cargo test --package gristmill-sources --test documentation

# the manual as a book in target/book (needs mdbook: cargo install mdbook --version 0.5.4 --locked)
docs:
    mdbook build docs
    cargo doc --no-deps --workspace
