//! The commands, one file each: its `Args`, whose doc comments are its help, and its code. A new
//! command is a file and a line here.

use clap::Subcommand;
use gristmill_client::Failure;

macro_rules! commands {
    ($($name:ident => $module:ident),* $(,)?) => {
        $(pub mod $module;)*
        pub mod fetcher;
        pub mod function;

        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($name($module::Args),)*
            #[command(hide = true)]
            Function(function::Args),
            Fetcher(fetcher::Args),
        }

        impl Command {
            pub async fn run(self) -> Result<(), Failure> {
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
    Demo => demo,
    Run => run,
    Up => up,
    Ps => ps,
    Status => status,
    Stop => stop,
    Forget => forget,
    Cache => cache,
    Doctor => doctor,
    Explain => explain,
    Operators => operators,
    Plan => plan,
    Simulate => simulate,
    Bench => bench,
}
