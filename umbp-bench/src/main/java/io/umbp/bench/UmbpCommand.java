package io.umbp.bench;

import io.umbp.bench.sim.SimulateCommand;
import java.io.PrintWriter;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.ParameterException;

/** The {@code umbp} command. */
@Command(
    name = "umbp",
    description =
        "Moves KV blocks between GPU and host memory, and shows that they come back whole.",
    synopsisSubcommandLabel = "COMMAND",
    subcommands = {
      ReplayCommand.class,
      BenchCommand.class,
      SimulateCommand.class,
      LayoutCommand.class,
      VectorsCommand.class
    },
    mixinStandardHelpOptions = true,
    versionProvider = UmbpCommand.Version.class)
public final class UmbpCommand {
  private UmbpCommand() {}

  static final class Version implements CommandLine.IVersionProvider {
    @Override
    public String[] getVersion() {
      String version = UmbpCommand.class.getPackage().getImplementationVersion();
      return new String[] {"umbp " + (version == null ? "(not packaged)" : version)};
    }
  }

  /**
   * Runs the command and ends the process: 0 when all is well, 1 when what was checked is wrong, 2
   * when the input or an option cannot be used.
   *
   * @param arguments the command line
   */
  public static void main(String[] arguments) {
    System.exit(commandLine().execute(arguments));
  }

  static CommandLine commandLine() {
    return commandLine(new UmbpCommand());
  }

  private static CommandLine commandLine(UmbpCommand root) {
    CommandLine line = new CommandLine(root);
    line.setCaseInsensitiveEnumValuesAllowed(true);
    line.setParameterExceptionHandler(UmbpCommand::refuse);
    line.setExecutionExceptionHandler(
        (thrown, command, result) -> {
          if (thrown instanceof BadInputException) {
            print(command, String.valueOf(thrown.getMessage()));
            return CommandLine.ExitCode.USAGE;
          }
          throw thrown;
        });
    return line;
  }

  private static int refuse(ParameterException thrown, String[] arguments) {
    CommandLine command = thrown.getCommandLine();
    String name = command.getCommandSpec().qualifiedName();
    print(command, thrown.getMessage() + " (see " + name + " --help)");
    return CommandLine.ExitCode.USAGE;
  }

  private static void print(CommandLine command, String message) {
    PrintWriter err = command.getErr();
    String line = message.strip().replaceAll("\\s*\\R\\s*", " ");
    err.println(command.getCommandSpec().qualifiedName() + ": " + line);
    err.flush();
  }
}
