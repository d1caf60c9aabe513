# shellcheck shell=bash
# The whole system on MiniStack, from scripts/deploy to scripts/teardown. Sourced by scripts/test-peers, with
# MiniStack started, BUILD the directory of what to deploy, and BIN that of the programs.

readonly STACK=gristmill-peers DATASET_BUCKET=peers-dataset IMAGES=500
# A nonexistent key, so that the policies contain its statement.
readonly DATASET_KEY=arn:aws:kms:us-east-1:000000000000:key/peers

peer_aws() { AWS_ENDPOINT_URL=$MINISTACK "$AWS" "$@"; }

stack_output() {
    peer_aws cloudformation describe-stacks --stack-name "$STACK" --output text \
        --query "Stacks[0].Outputs[?OutputKey=='$1'].OutputValue | [0]"
}

# as_trainer COMMAND..: with a trainer's role, variables and address, as on a host of its own.
as_trainer() {
    env -u AWS_ENDPOINT_URL "${trainer[@]}" "$@"
}

deploy() {
    peer_aws s3api create-bucket --bucket "$DATASET_BUCKET" >/dev/null
    peer_aws s3 cp --quiet --recursive "$dataset" "s3://$DATASET_BUCKET/imagenet/"
    AWS_ENDPOINT_URL=$MINISTACK scripts/deploy --stack "$STACK" --x86 --built --build-dir "$BUILD" --yes \
        --dataset "$DATASET_BUCKET" --dataset-key "$DATASET_KEY"
}

# A role that may do what the stack's policy for trainers says and nothing else.
become_trainer() {
    local trust='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}'
    local role policy key secret token
    role=$(peer_aws iam create-role --role-name peers-trainer --assume-role-policy-document "$trust" \
        --query Role.Arn --output text)
    policy=$(stack_output TrainerPolicyArn)
    peer_aws iam attach-role-policy --role-name peers-trainer --policy-arn "$policy"
    read -r key secret token < <(peer_aws sts assume-role --role-arn "$role" --role-session-name peers-trainer \
        --query 'Credentials.[AccessKeyId, SecretAccessKey, SessionToken]' --output text)
    trainer=(
        AWS_ACCESS_KEY_ID="$key" AWS_SECRET_ACCESS_KEY="$secret" AWS_SESSION_TOKEN="$token"
        AWS_ENDPOINT_URL="$RELAY" HTTPS_PROXY="http://${RELAY#https://}" NO_PROXY=127.0.0.1 SSL_CERT_FILE="$CA"
        GRISTMILL_NAMESPACE=default GRISTMILL_BUCKET="$(stack_output BucketName)"
        GRISTMILL_COORDINATOR_URL="$(stack_output CoordinatorUrl)"
    )
    trainer_key=$key
}

conditions_on_keys() { knows_conditions_on_keys as_trainer "$BIN/gristmill"; }

doctor_finds_all_well() {
    local said
    said=$(as_trainer "$BIN/gristmill" doctor --backend aws 2>&1)
    echo "$said"
    [[ $said != *FAIL* ]]
}

# doctor_finds CHECK WORDS COMMAND..: that check has failed, with these words, and the doctor ended as it should.
doctor_finds() {
    local said code=0
    said=$("${@:3}" "$BIN/gristmill" doctor --backend aws 2>&1) || code=$?
    echo "$said" | tee "$STATE/doctor"
    [[ $code -eq 1 && $said != *panicked* && $said != *backtrace* ]]
    grep -q "^FAIL *$1 .*$2" <<<"$said"
}

doctor_names_a_closed_port() {
    local nobody
    nobody=http://127.0.0.1:$(free_port)
    doctor_finds bucket "$nobody" as_trainer env AWS_ENDPOINT_URL="$nobody" GRISTMILL_COORDINATOR_URL="$nobody"
    grep -q "^FAIL *coordinator .*$nobody" "$STATE/doctor"
}

# A coordinator beside the stack's, whose table is not there.
doctor_names_a_missing_table() {
    local role url bucket zip=$STATE/astray.zip
    role=$(peer_aws iam create-role --role-name peers-astray --assume-role-policy-document "$LAMBDA_ASSUMES" \
        --query Role.Arn --output text)
    peer_aws iam put-role-policy --role-name peers-astray --policy-name all --policy-document "$ALLOWS_ALL"
    bucket=$(stack_output BucketName)
    (cd "$BUILD/CoordinatorFunction" && python3 -m zipfile -c "$zip" bootstrap)
    peer_aws lambda create-function --function-name peers-astray --runtime provided.al2023 --handler bootstrap \
        --role "$role" --architectures x86_64 --timeout 30 --zip-file "fileb://$zip" --environment \
        "Variables={GRISTMILL_TABLE=absent,GRISTMILL_BUCKET=$bucket,GRISTMILL_SCALER_FUNCTION=none}" >/dev/null
    url=$(peer_aws lambda create-function-url-config --function-name peers-astray --auth-type AWS_IAM \
        --query FunctionUrl --output text)
    # Its URL is none of those that a trainer may call.
    # shellcheck disable=SC2154 # become_administrator, of test-peers, sets it
    doctor_finds table "there is no table absent" as_trainer env -u AWS_SESSION_TOKEN "${administrator[@]}" \
        GRISTMILL_COORDINATOR_URL="$url"
    peer_aws lambda delete-function --function-name peers-astray
    peer_aws logs delete-log-group --log-group-name /aws/lambda/peers-astray || true
    peer_aws iam delete-role-policy --role-name peers-astray --policy-name all
    peer_aws iam delete-role --role-name peers-astray
}

take_back_permissions() {
    AWS_ENDPOINT_URL=$MINISTACK take_back_allowed "$STACK"
    # A policy that a role has cannot be deleted.
    peer_aws iam detach-role-policy --role-name peers-trainer --policy-arn "$(stack_output TrainerPolicyArn)"
}

an_epoch_is_delivered() {
    as_trainer "$BIN/gristmill" run examples/resnet50.yaml --backend aws --data "s3://$DATASET_BUCKET/imagenet/train-*" \
        --job first --epochs 1 --step-time 1ms --sink "$STATE/sink-deployed" --json | tee "$STATE/run.json"
}

each_record_is_there_once() { scripts/peers/recount "$dataset" "$STATE/sink-deployed"; }

batches_are_those_of_the_embedded_run() {
    "$BIN/gristmill" run examples/resnet50.yaml --data "$dataset/train-*" --epochs 1 --step-time 1ms \
        --sink "$STATE/sink-embedded" --json >"$STATE/embedded.json"
    hash_of() { grep -o '"batches_blake3":"[0-9a-f]*"' "$1"; }
    echo "deployed $(hash_of "$STATE/run.json"), embedded $(hash_of "$STATE/embedded.json")"
    [[ -n $(hash_of "$STATE/run.json") && $(hash_of "$STATE/run.json") == $(hash_of "$STATE/embedded.json") ]]
    diff -r "$STATE/sink-deployed" "$STATE/sink-embedded"
}

local_workers_take_part() {
    as_trainer "$BIN/gristmill" run examples/resnet50.yaml --backend aws --data "s3://$DATASET_BUCKET/imagenet/train-*" \
        --job second --epochs 1 --step-time 1ms --local-workers 1 --workers 1
}

# A record damaged in transit is captured by the worker or trainer that finds it.
damaged_records_are_set_aside() {
    local shard=$STATE/damaged bucket where who
    cp "$dataset"/train-00000-* "$shard"
    python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(200); b = f.read(1)[0]; f.seek(200); f.write(bytes([b ^ 1]))' "$shard"
    bucket=$(stack_output BucketName)
    for where in remote local; do
        # A dataset each, so that each is indexed where it is read.
        peer_aws s3 cp --quiet "$shard" "s3://$DATASET_BUCKET/damaged-$where/train-0"
        who=(--workers 1 --local-workers 0)
        [[ $where == remote ]] || who=(--workers 0 --local-workers 1)
        as_trainer "$BIN/gristmill" run examples/resnet50.yaml --backend aws \
            --data "s3://$DATASET_BUCKET/damaged-$where/" --job "damaged-$where" --epochs 1 --step-time 1ms \
            --on-error quarantine --max-skipped 100% "${who[@]}"
        peer_aws s3 ls "s3://$bucket/t/default/quarantine/damaged-$where/" | grep 00000000-00000000
    done
}

# Stored by workers of the stack, then by one in the trainer's host; found by the job after; removed.
what_is_cached_is_read_by_the_next_job() {
    local job modes who name
    # Elements that take so long are worth storing for three epochs.
    for name in autocache autocache-train; do
        sed '0,/^  - autocache/s//  - sleep: { ms: 100 }\n&/' "examples/$name.yaml" >"$STATE/$name.yaml"
    done
    for job in inner-1 inner-2 whole-1 whole-2; do
        who=("$STATE/autocache-train.yaml" --workers 1)
        [[ $job == inner-* ]] || who=("$STATE/autocache.yaml" --workers 0 --local-workers 1)
        modes=$(as_trainer "$BIN/gristmill" run "${who[@]}" --backend aws \
            --data "s3://$DATASET_BUCKET/imagenet/train-*" --job "cached-$job" --epochs 3 --step-time 1ms --json |
            python3 -c 'import json, sys; print(*[epoch["mode"] for epoch in json.load(sys.stdin)["epochs"]])')
        echo "$job: $modes"
        case $job in
            inner-1) [[ $modes == "profile put get" ]] ;;
            whole-1) [[ $modes == "profile get get" ]] ;;
            *) [[ $modes == "get get get" ]] ;;
        esac
    done
    as_trainer "$BIN/gristmill" cache ls --backend aws
    as_trainer "$BIN/gristmill" cache rm --all --backend aws | grep "removed 2 entries"
}

# The platform tells the coordinator, which frees the dead worker's lease: the scaler's state names the dead worker.
a_killed_worker_is_reported() {
    local run tries=240 pid=''
    as_trainer "$BIN/gristmill" run examples/resnet50.yaml --backend aws --data "s3://$DATASET_BUCKET/imagenet/train-*" \
        --job killed --epochs 2 --workers 1 --step-time 100ms >"$STATE/killed.log" 2>&1 &
    run=$!
    until pid=$(worker_at_work killed); do
        ((--tries > 0)) || return 1
        sleep 0.25
    done
    kill -9 "$pid"
    wait "$run"
    cat "$STATE/killed.log"
    peer_aws dynamodb get-item --table-name "$(stack_output TableName)" --output text --query Item.json.S \
        --key '{"pk": {"S": "T#default#J#killed"}, "sk": {"S": "SCALE"}}' | tee /dev/stderr | grep -q '"dead":\["'
}

# The process of a worker, while a lease of the job is held.
worker_at_work() {
    local process
    status_of "$1" 2>/dev/null | grep -q '"state":"running".*"workers":{"active":1' || return 1
    for process in /proc/[0-9]*; do
        if grep -qz "^AWS_LAMBDA_FUNCTION_NAME=$STACK-worker$" "$process/environ" &&
            grep -qz "^LAMBDA_TASK_ROOT=$STATE/" "$process/environ"; then
            echo "${process#/proc/}"
            return
        fi
    done 2>/dev/null
    return 1
}

status_of() { as_trainer "$BIN/gristmill" status "$1" --backend aws --json; }

status_knows_the_job() { status_of first | tee /dev/stderr | grep -q '"state":"done"'; }

# A job that would never end, stopped while it runs.
stop_ends_a_job() {
    local run tries=120
    as_trainer "$BIN/gristmill" run examples/resnet50.yaml --backend aws --data "s3://$DATASET_BUCKET/imagenet/train-*" \
        --job endless --epochs 1000 >"$STATE/endless.log" 2>&1 &
    run=$!
    until status_of endless 2>/dev/null | grep -q '"state":"running"'; do
        ((--tries > 0)) || return 1
        sleep 0.5
    done
    as_trainer "$BIN/gristmill" stop endless --backend aws
    if wait "$run"; then
        echo "the trainer of a stopped job went on to its end"
        return 1
    fi
    cat "$STATE/endless.log"
    status_of endless | grep '"state":"stopped"'
}

# The scheduled upkeep, every quarter of an hour.
upkeep_is_done() {
    local said event=$STATE/upkeep.event
    # From a file, which both versions of the CLI take as it is.
    echo '{"upkeep":true}' >"$event"
    said=$(peer_aws lambda invoke --function-name "$STACK-coordinator:live" --payload "fileb://$event" "$STATE/upkeep.json")
    echo "$said"
    cat "$STATE/upkeep.json"
    [[ $said != *FunctionError* ]]
}

calls_are_allowed() {
    AWS_ENDPOINT_URL=$MINISTACK scripts/peers/permissions collect "$STACK" "$trainer_key" >"$STATE/policies.json"
    scripts/peers/permissions allowed "$STATE/policies.json" "$RECORD"
}

permissions_are_used() { scripts/peers/permissions used "$STATE/policies.json" "$RECORD" scripts/peers/unused; }

# A stack of the same name after one that was deleted without its data.
what_was_kept_is_gone_on_with() {
    local table bucket
    table=$(stack_output TableName) bucket=$(stack_output BucketName)
    AWS_ENDPOINT_URL=$MINISTACK scripts/teardown --stack "$STACK" --yes
    AWS_ENDPOINT_URL=$MINISTACK scripts/deploy --stack "$STACK" --x86 --built --build-dir "$BUILD" --yes \
        --dataset "$DATASET_BUCKET" --dataset-key "$DATASET_KEY"
    [[ $(stack_output TableName) == "$table" && $(stack_output BucketName) == "$bucket" ]]
    peer_aws dynamodb get-item --table-name "$table" --output text --query Item.json.S \
        --key '{"pk": {"S": "T#default#J#first"}, "sk": {"S": "JOB"}}' | grep dataset_version
    peer_aws s3api get-bucket-policy --bucket "$bucket" --query Policy --output text | grep -q t/default/index/
}

teardown() {
    local said
    said=$(AWS_ENDPOINT_URL=$MINISTACK scripts/teardown --stack "$STACK" --data --yes)
    echo "$said"
    [[ $said == *"nothing is left of $STACK"* ]]
}

# Checks the stack's own resources: the bucket for uploads belongs to SAM's stack, and the dataset is older.
nothing_is_left() {
    local left
    left=$(
        peer_aws lambda list-functions --query 'Functions[].FunctionName' --output text
        peer_aws lambda list-event-source-mappings --query 'EventSourceMappings[].UUID' --output text
        peer_aws dynamodb list-tables --query 'TableNames' --output text
        peer_aws s3api list-buckets --query 'Buckets[].Name' --output text
        peer_aws iam list-roles --query 'Roles[].RoleName' --output text
        peer_aws iam list-policies --scope Local --query 'Policies[].PolicyName' --output text
        peer_aws logs describe-log-groups --query 'logGroups[].logGroupName' --output text
        peer_aws events list-rules --query 'Rules[].Name' --output text
    )
    # shellcheck disable=SC2086 # a name a line
    left=$(printf '%s\n' $left | grep -vx -e "$DATASET_BUCKET" -e peers-trainer -e 'aws-sam-cli-managed-.*' \
        -e gristmill -e gristmill.local -e None -e '') || true
    echo "left: ${left:-nothing}"
    [[ -z $left ]]
}

run_stack() {
    local step
    trainer=() trainer_key=''
    # Made by gristmill, once: the same images every time.
    "$BIN/gristmill" demo --images "$IMAGES" --epochs 1 --step-time 1ms >"$STATE/dataset.log" 2>&1
    dataset=$(echo "${XDG_CACHE_HOME:-$HOME/.cache}"/gristmill/datasets/imagenet-like-"$IMAGES"-0-v*)
    dataset=${dataset##* }
    check ministack stack deploy
    [[ $CHECKED == ok ]] || return 0
    become_trainer
    check ministack stack conditions_on_keys
    [[ $CHECKED == ok ]] || AWS_ENDPOINT_URL=$MINISTACK allow_without_conditions "$STACK"
    for step in an_epoch_is_delivered each_record_is_there_once batches_are_those_of_the_embedded_run \
        local_workers_take_part damaged_records_are_set_aside \
        what_is_cached_is_read_by_the_next_job a_killed_worker_is_reported status_knows_the_job \
        stop_ends_a_job upkeep_is_done; do
        check ministack stack "$step"
    done
    for step in calls_are_allowed permissions_are_used; do
        check ministack permissions "$step"
    done
    # Later than these, since the doctor tries what a trainer need not be allowed.
    for step in doctor_finds_all_well doctor_names_a_closed_port doctor_names_a_missing_table; do
        check ministack stack "$step"
    done
    take_back_permissions
    for step in what_was_kept_is_gone_on_with teardown nothing_is_left; do
        check ministack stack "$step"
    done
}

# On an emulator that has nothing else any more.
smoke_aws_finds_the_same_batches() {
    AWS_ENDPOINT_URL=$MINISTACK scripts/smoke-aws --yes --build-dir "$BUILD" --bin-dir "$BIN" --out "$STATE/smoke.json" \
        --trainer-env "AWS_ENDPOINT_URL=$RELAY" --trainer-env "HTTPS_PROXY=http://${RELAY#https://}" \
        --trainer-env NO_PROXY=127.0.0.1 --trainer-env "SSL_CERT_FILE=$CA"
    cat "$STATE/smoke.json"
    nothing_is_left
}
