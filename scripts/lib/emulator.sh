# shellcheck shell=bash
# For stacks on an emulator of AWS. Sourced; expects AWS, and AWS_ENDPOINT_URL for what asks the emulator.

# knows_conditions_on_keys GRISTMILL..: whether the emulator knows what the policies ask of a table's keys, by what
# that command says as a trainer.
knows_conditions_on_keys() {
    local said
    said=$("$@" status nobody --backend aws 2>&1) || true
    echo "$said"
    [[ $said == *"no job nobody"* ]]
}

roles_with_conditions() {
    "$AWS" iam list-roles --output text --query \
        "Roles[?starts_with(RoleName, '$1-CoordinatorRole') || starts_with(RoleName, '$1-ScalerRole')].RoleName"
}

# allow_without_conditions STACK: until it does. The conditions themselves are evaluated by scripts/peers/permissions.
allow_without_conditions() {
    local name document
    document='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "*",
        "Action": ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:PutItem", "dynamodb:Query"]}]}'
    for name in $(roles_with_conditions "$1"); do
        "$AWS" iam put-role-policy --role-name "$name" --policy-name stand-in --policy-document "$document"
    done
}

# take_back_allowed STACK: a role with a policy that is not the stack's could not be deleted.
take_back_allowed() {
    local name
    for name in $(roles_with_conditions "$1"); do
        "$AWS" iam delete-role-policy --role-name "$name" --policy-name stand-in
    done
}
