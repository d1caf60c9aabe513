# shellcheck shell=bash disable=SC2154
# Facts about AWS for scripts/deploy and scripts/teardown. Sourced; expects AWS, region and fail(). Runs under bash 3.2,
# which macOS has.

# Regions without function URLs, by which workers and trainers reach the coordinator, in November 2026:
# https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html
# https://docs.aws.amazon.com/govcloud-us/latest/UserGuide/govcloud-lambda.html
# https://docs.amazonaws.cn/en_us/aws/latest/userguide/lambda.html
# And mx-central-1, where CloudFormation has no AWS::Lambda::Url.
has_function_urls() {
    case $1 in
        ap-east-2 | ap-south-2 | ap-southeast-[4-7] | ca-west-1 | eu-central-2 | eu-south-2) return 1 ;;
        il-central-1 | me-central-1 | mx-central-1 | us-gov-* | cn-*) return 1 ;;
    esac
}

# partition_of REGION: as botocore's partitions.json has it.
partition_of() {
    case $1 in
        cn-*) echo aws-cn ;;
        us-gov-*) echo aws-us-gov ;;
        us-iso-*) echo aws-iso ;;
        us-isob-*) echo aws-iso-b ;;
        eu-isoe-*) echo aws-iso-e ;;
        us-isof-*) echo aws-iso-f ;;
        eusc-*) echo aws-eusc ;;
        *) echo aws ;;
    esac
}

# bucket_named OPTION VALUE: the bucket that an option names: its name, s3://NAME or its ARN.
bucket_named() {
    local name=$2 given=''
    case $2 in
        s3://*) name=${2#s3://} name=${name%/} ;;
        arn:*:s3:::*)
            given=${2#arn:} given=${given%%:*} name=${2#arn:*:s3:::}
            [[ $given == "$(partition_of "$region")" ]] ||
                fail "$1 $2 is in partition $given, and $region is in $(partition_of "$region")" 2
            ;;
    esac
    [[ $name != */* ]] ||
        fail "$1 takes a bucket and allows all of it, not a part such as $2: give $1 ${name%%/*}" 2
    [[ $name =~ ^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$ ]] || fail "$1 $2 is not the name of a bucket" 2
    echo "$name"
}

# key_named OPTION VALUE: the ARN of a KMS key. Permissions on keys are by key: an alias gives none.
key_named() {
    [[ $2 =~ ^arn:[a-z0-9-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[^,[:space:]]+$ ]] ||
        fail "$1 takes the ARN of a key, arn:..:kms:REGION:ACCOUNT:key/ID, not $2 (aws kms describe-key shows it)" 2
    [[ $2 == "arn:$(partition_of "$region"):"* ]] ||
        fail "$1 $2 is in another partition than $region" 2
    echo "$2"
}

# trust_of WHO SUBJECT: the trust policy of a role that WHO may assume, or nothing for `none`.
trust_of() {
    local partition principal actions='"sts:AssumeRole", "sts:TagSession"' condition='' issuer
    partition=$(partition_of "$region")
    case $1 in
        none)
            [[ -z $2 ]] || fail "--trainer none takes no --trainer-subject" 2
            return
            ;;
        https://*)
            issuer=${1#https://} issuer=${issuer%/}
            [[ $issuer =~ ^[A-Za-z0-9.:/_-]+$ ]] || fail "--trainer takes an issuer such as https://oidc.example.org, not $1" 2
            [[ ${2:-*} =~ [^*] ]] ||
                fail "an issuer has tokens for others too: say whose with --trainer-subject, such as system:serviceaccount:NAMESPACE:NAME" 2
            principal="\"Federated\": \"arn:$partition:iam::$account:oidc-provider/$issuer\""
            # https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_create_for-idp_oidc.html
            actions='"sts:AssumeRoleWithWebIdentity"'
            condition="\"StringEquals\": {\"$issuer:aud\": \"sts.amazonaws.com\"}, \"StringLike\": {\"$issuer:sub\": \"$2\"}"
            ;;
        arn:*:rolesanywhere:*:trust-anchor/*)
            [[ -n $2 ]] || fail "say with --trainer-subject which certificates of the trust anchor: their common name, or *" 2
            # https://docs.aws.amazon.com/rolesanywhere/latest/userguide/trust-model.html
            principal='"Service": "rolesanywhere.amazonaws.com"' actions+=', "sts:SetSourceIdentity"'
            condition="\"ArnEquals\": {\"aws:SourceArn\": \"$1\"}, \"StringLike\": {\"aws:PrincipalTag/x509Subject/CN\": \"$2\"}"
            ;;
        [0-9]* | arn:*:iam::*:role/* | arn:*:iam::*:user/*)
            [[ $1 == arn:* || $1 =~ ^[0-9]{12}$ ]] || fail "an account has 12 digits, not $1" 2
            [[ -z $2 ]] || fail "--trainer-subject goes with an issuer or a trust anchor" 2
            principal="\"AWS\": \"$1\""
            ;;
        *) fail "--trainer takes an account, the ARN of a user, role or trust anchor, or https://ISSUER, not $1" 2 ;;
    esac
    [[ $1$2 != *[[:space:]\"\\]* ]] || fail "--trainer and --trainer-subject have no blanks, quotes or backslashes" 2
    [[ $1 != arn:* || $1 == "arn:$partition:"* ]] || fail "--trainer $1 is in another partition than $region" 2
    echo "{\"Version\": \"2012-10-17\", \"Statement\": [{\"Effect\": \"Allow\", \"Action\": [$actions], \"Principal\": {$principal}, \"Condition\": {$condition}}]}"
}

# must_fit ARN..: ends the script if the policy of trainers, which has each bucket twice, is longer than IAM allows.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
readonly POLICY_MOST=6144 POLICY_BASE=2700
must_fit() {
    local arn length=$POLICY_BASE
    for arn in "$@"; do length=$((length + 2 * ${#arn} + 10)); done
    [[ $length -le $POLICY_MOST ]] ||
        fail "the policy of trainers has $POLICY_MOST characters at most, too few for $# buckets with such names: deploy a second stack for some" 2
}

# owner_of KIND NAME [EXCEPT]: a stack of the region, other than EXCEPT, that made or uses this bucket or table.
owner_of() {
    local output parameter type said
    case $1 in
        bucket) output=BucketName parameter=KeptBucket type=AWS::S3::Bucket ;;
        table) output=TableName parameter=KeptTable type=AWS::DynamoDB::Table ;;
    esac
    said=$("$AWS" cloudformation describe-stacks --output text --query "Stacks[?StackName!='${3:-}' && StackStatus!='DELETE_COMPLETE' && (Outputs[?OutputKey=='$output' && OutputValue=='$2'] || Parameters[?ParameterKey=='$parameter' && ParameterValue=='$2'])].[StackName]") ||
        fail "cannot see whether a stack uses $1 $2"
    if [[ -z $said || $said == None ]]; then
        # Stacks of other templates, and such as are just made. A deleted stack is still known for 90 days.
        said=$("$AWS" cloudformation describe-stack-resources --physical-resource-id "$2" --output text --query "StackResources[?PhysicalResourceId=='$2' && ResourceType=='$type' && StackName!='${3:-}' && !starts_with(ResourceStatus, 'DELETE_')].[StackName]" 2>&1) || {
            [[ $said == *"does not exist"* ]] || fail "cannot see whether a stack uses $1 $2: $said"
            said=''
        }
    fi
    [[ $said == None ]] || echo "${said%%[[:space:]]*}"
}

# must_be_free KIND NAME ADVICE [EXCEPT]: ends the script if a stack has it.
must_be_free() {
    local owner
    owner=$(owner_of "$1" "$2" "${4:-}")
    [[ -z $owner ]] || fail "$1 $2 belongs to stack $owner; $3" 2
}

# must_be_here BUCKET: ends the script if it is in another region. Older versions of the CLI do not say.
must_be_here() {
    local home
    home=$("$AWS" s3api head-bucket --bucket "$1" --output text --query BucketRegion 2>&1) ||
        fail "cannot use bucket $1: $home"
    [[ -z $home || $home == None || $home == "$region" ]] || fail "bucket $1 is in $home, and the stack in $region" 2
}

# Concurrency that AWS lets nobody reserve; what coordinator and scaler have at least; and what workers leave to them if
# nothing can be reserved.
readonly UNRESERVED=100 COORDINATOR_LEAST=20 SCALER_PLACES=5 HEADROOM=3

# share_of CONCURRENCY: what the stack may use of it. Other functions keep half, and 100 if there are more.
share_of() {
    local others=$(($1 / 2))
    [[ $1 -le $UNRESERVED || $others -ge $UNRESERVED ]] || others=$UNRESERVED
    echo $(($1 - others))
}

# can_reserve CONCURRENCY WORKERS: whether coordinator and scaler have concurrency of their own.
can_reserve() {
    local least=$((COORDINATOR_LEAST + SCALER_PLACES))
    [[ $2 -gt 0 || ($(share_of "$1") -gt $least && $(($1 - UNRESERVED)) -ge $least) ]]
}

# coordinator_for WORKERS: a function URL serves 10 requests a second for each reserved call, and 600 workers with short
# splits send up to 1,000. (https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html#urls-throttling)
coordinator_for() { echo $(($1 > COORDINATOR_LEAST * 6 ? ($1 + 5) / 6 : COORDINATOR_LEAST)); }

# workers_for CONCURRENCY WORKERS: most workers of a job; WORKERS are reserved for workers, unless 0.
workers_for() {
    local share workers
    share=$(share_of "$1")
    if [[ $2 -gt 0 ]]; then
        workers=$2
    elif can_reserve "$1" "$2"; then
        share=$((share - SCALER_PLACES)) workers=$((share * 6 / 7))
        [[ $workers -le $((share - COORDINATOR_LEAST)) ]] || workers=$((share - COORDINATOR_LEAST))
    else
        workers=$((share - HEADROOM))
    fi
    echo $((workers > 1 ? workers : 1))
}

# Units a second that the table serves at once: a new one serves 12,000 reads and 4,000 writes. Workers of splits of 1.6 s
# read 2.4 and write 1.65 each; twice that, since keys do not fall evenly onto partitions.
# https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/warm-throughput.html
warm_reads_for() { echo $(($1 * 48 / 10 > 12000 ? $1 * 48 / 10 : 12000)); }
warm_writes_for() { echo $(($1 * 33 / 10 > 4000 ? $1 * 33 / 10 : 4000)); }

budget_name() { echo "gristmill $stack $region"; }

# set_budget ACCOUNT USD EMAIL: the stack's budget. It counts what has a tag which CloudFormation puts onto what it makes.
set_budget() {
    local kind notices=''
    for kind in ACTUAL:80 FORECASTED:100; do
        notices+="${notices:+, }{\"Notification\": {\"NotificationType\": \"${kind%:*}\", \"ComparisonOperator\": \"GREATER_THAN\",
            \"Threshold\": ${kind#*:}, \"ThresholdType\": \"PERCENTAGE\"},
            \"Subscribers\": [{\"SubscriptionType\": \"EMAIL\", \"Address\": \"$3\"}]}"
    done
    "$AWS" budgets delete-budget --account-id "$1" --budget-name "$(budget_name)" >/dev/null 2>&1 || true
    "$AWS" budgets create-budget --account-id "$1" --notifications-with-subscribers "[$notices]" --budget "{
        \"BudgetName\": \"$(budget_name)\", \"BudgetType\": \"COST\", \"TimeUnit\": \"MONTHLY\",
        \"BudgetLimit\": {\"Amount\": \"$2\", \"Unit\": \"USD\"},
        \"CostFilters\": {\"TagKeyValue\": [\"aws:cloudformation:stack-name\$$stack\"]}}"
}

# old_glibc FILE: ends the script if the program needs a newer glibc than that of provided.al2023, 2.34:
# https://docs.aws.amazon.com/linux/al2023/ug/core-glibc.html
old_glibc() {
    local newest
    newest=$(LC_ALL=C grep -aoE 'GLIBC_2\.[0-9]+' "$1" | sed 's/GLIBC_2\.//' | sort -n | tail -n 1) || true
    [[ ${newest:-0} -le 34 ]] ||
        fail "$1 needs glibc 2.$newest, and Lambda's provided.al2023 has 2.34: it would not start; build it with cargo-lambda"
}
