package io.umbp.bench;

import java.io.PrintWriter;
import java.util.Locale;
import me.tongfei.progressbar.ProgressBar;
import me.tongfei.progressbar.ProgressBarBuilder;
import me.tongfei.progressbar.ProgressBarStyle;

/** Shows how far a replay has come. Thread-confined. */
interface ReplayProgress extends AutoCloseable {
  /** Takes note of how many requests are over. */
  void reached(long requests);

  @Override
  void close();

  /** A bar on a terminal, a line every tenth of the way elsewhere. */
  @SuppressWarnings("SystemConsoleNull") // JDK 22 to 24 have a console even without a terminal.
  static ReplayProgress of(long requests, PrintWriter err) {
    return System.console() != null ? bar(requests) : lines(requests, err);
  }

  private static ReplayProgress bar(long requests) {
    ProgressBar bar =
        new ProgressBarBuilder()
            .setTaskName("replay")
            .setInitialMax(requests)
            .setStyle(ProgressBarStyle.ASCII)
            .setUpdateIntervalMillis(200)
            .showSpeed()
            .build();
    return new ReplayProgress() {
      @Override
      public void reached(long done) {
        bar.stepTo(done);
      }

      @Override
      public void close() {
        bar.close();
      }
    };
  }

  /** Plain lines. */
  static ReplayProgress lines(long requests, PrintWriter err) {
    long every = Math.max(1, (requests + 9) / 10);
    return new ReplayProgress() {
      @Override
      public void reached(long done) {
        if (done % every == 0 || done == requests) {
          err.println(String.format(Locale.ROOT, "replayed %,d of %,d requests", done, requests));
          err.flush();
        }
      }

      @Override
      public void close() {}
    };
  }
}
