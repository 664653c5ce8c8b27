package io.umbp.cuda;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.Locale;
import jcuda.driver.JCudaDriver;
import org.jspecify.annotations.Nullable;

/**
 * JCuda's native library, put where JCuda looks for it.
 *
 * <p>JCuda takes {@code lib<name>.so} from {@code java.library.path}, else from a fixed path in
 * {@code java.io.tmpdir}, where it unpacks the library unless a file of that name exists: whole or
 * half written, its own or not. Of JVMs that start at once some then die. So the file is written
 * here first, beside its place, and moved there in one step, also over a file with other content.
 */
final class CudaNatives {
  static final String VERSION = "12.6.0";
  private static final String LIBRARY = "JCudaDriver-" + VERSION + "-linux-x86_64";
  private static final String FILE = "lib" + LIBRARY + ".so";

  private static boolean wasTried;
  private static @Nullable String reason;

  private CudaNatives() {}

  /**
   * Loads the library unless that was tried before. Does not initialise the driver.
   *
   * @return why it can't be loaded, in one line, or null when it is
   */
  static synchronized @Nullable String load() {
    if (!wasTried) {
      reason = tryLoad();
      wasTried = true;
    }
    return reason;
  }

  private static @Nullable String tryLoad() {
    String platform = System.getProperty("os.name") + "/" + System.getProperty("os.arch");
    if (!platform.toLowerCase(Locale.ROOT).matches("linux.*/(amd64|x86_64)")) {
      return "no CUDA natives for " + platform + ": JCuda " + VERSION + " has linux-x86_64 only";
    }
    Path place = Path.of(System.getProperty("java.io.tmpdir"), FILE).toAbsolutePath();
    try {
      if (!isOnLibraryPath()) {
        String missing = place(place);
        if (missing != null) {
          return missing;
        }
      }
    } catch (IOException | RuntimeException e) {
      return String.format(
          "JCuda %s for linux-x86_64 can't be unpacked to %s (%s); make that folder writable, or"
              + " unpack the natives and name their folder with -Djava.library.path",
          VERSION, place, oneLine(e));
    }
    try {
      Class.forName(JCudaDriver.class.getName(), true, JCudaDriver.class.getClassLoader());
      return null;
    } catch (ClassNotFoundException | LinkageError | RuntimeException e) {
      return whyNotLinked(e, place);
    }
  }

  private static boolean isOnLibraryPath() {
    return Arrays.stream(System.getProperty("java.library.path", "").split(File.pathSeparator))
        .anyMatch(folder -> !folder.isEmpty() && Files.isRegularFile(Path.of(folder, FILE)));
  }

  /** Puts the library in its place; returns what is missing, or null. */
  private static @Nullable String place(Path place) throws IOException {
    byte[] library;
    try (InputStream in = JCudaDriver.class.getResourceAsStream("/lib/" + FILE)) {
      if (in == null) {
        return String.format(
            "no natives: %s is neither in java.library.path nor a resource; add"
                + " org.jcuda:jcuda-natives:%s:linux-x86_64",
            FILE, VERSION);
      }
      library = in.readAllBytes();
    }
    if (Files.isRegularFile(place)
        && Files.size(place) == library.length
        && Arrays.equals(Files.readAllBytes(place), library)) {
      return null;
    }
    Path beside = Files.createTempFile(place.getParent(), LIBRARY, ".tmp");
    try {
      Files.write(beside, library);
      Files.move(beside, place, StandardCopyOption.ATOMIC_MOVE);
    } finally {
      Files.deleteIfExists(beside);
    }
    return null;
  }

  private static String whyNotLinked(Throwable e, Path place) {
    String text = String.valueOf(e.getMessage());
    for (Throwable cause = e.getCause(); cause != null; cause = cause.getCause()) {
      text += "\n" + cause.getMessage();
    }
    if (text.contains("libcuda.so.1")) {
      return "no CUDA driver: libcuda.so.1 is not installed, or not where the loader looks";
    }
    return String.format(
        "JCuda %s for linux-x86_64 at %s can't be linked: %s", VERSION, place, firstLine(text));
  }

  static String oneLine(Throwable e) {
    return e.getClass().getSimpleName() + ": " + firstLine(String.valueOf(e.getMessage()));
  }

  private static String firstLine(String text) {
    return text.strip().lines().findFirst().orElse("");
  }
}
