//! The commands, one file each: its arguments, whose doc comments are its help, and its code. A new
//! command is a file and a line here.

use clap::Subcommand;
use gristmill_client::ProgramFailure;

macro_rules! commands {
    ($($name:ident => $module:ident::$args:ident),* $(,)?) => {
        $(pub mod $module;)*
        pub mod function;

        #[derive(Debug, Subcommand)]
        pub enum CliCommand {
            $($name($module::$args),)*
            #[command(hide = true)]
            Function(function::FunctionArgs),
            Fetcher(function::FetcherArgs),
        }

        impl CliCommand {
            pub async fn run(self) -> Result<(), ProgramFailure> {
                match self {
                    $(Self::$name(args) => args.run().await,)*
                    Self::Fetcher(args) => args.run().await,
                    // Has a runtime of its own: see `function::run`.
                    Self::Function(_) => Ok(()),
                }
            }
        }
    };
}

commands! {
    Demo => demo::DemoArgs,
    Run => run::RunArgs,
    Up => up::UpArgs,
    Ps => ps::PsArgs,
    Status => status::StatusArgs,
    Stop => stop::StopArgs,
    Forget => forget::ForgetArgs,
    Cache => cache::CacheArgs,
    Doctor => doctor::DoctorArgs,
    Explain => explain::ExplainArgs,
    Show => show::ShowArgs,
    Operators => operators::OperatorsArgs,
    Plan => plan::PlanArgs,
    Profile => profile::ProfileArgs,
    Simulate => simulate::SimulateArgs,
    Bench => bench::BenchArgs,
}
