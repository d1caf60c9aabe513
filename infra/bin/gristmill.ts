// The CDK app: one stack. `-c stack=NAME` names it, `-c build=DIR` says where the built functions are.

import { App, DefaultStackSynthesizer } from "aws-cdk-lib";
import * as path from "node:path";
import { GristmillStack } from "../lib/gristmill-stack";

const app = new App({ analyticsReporting: false });
const build = app.node.tryGetContext("build") ?? path.join(__dirname, "../../.aws-sam/build");
new GristmillStack(app, app.node.tryGetContext("stack") ?? "gristmill", {
  build: path.resolve(build),
  description: "gristmill - serverless preprocessing of training data. One stack serves one namespace and is one trust domain.",
  synthesizer: new DefaultStackSynthesizer({ generateBootstrapVersionRule: false }),
});
