package io.umbp.cuda;

import io.umbp.api.KVCacheTensor;
import io.umbp.api.TransferDirection;
import io.umbp.api.spi.CopyTicket;
import io.umbp.api.spi.HostSlab;
import io.umbp.testkit.FakeCudaDriver;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.stream.Stream;

/** A program that says whether CUDA can be used, and copies a page if so. */
final class CudaProbe {
  private CudaProbe() {}

  public static void main(String[] arguments) throws Exception {
    FakeCudaDriver driver = null;
    if (!"false".equals(System.getProperty("probe.fake"))) {
      driver = FakeCudaDriver.install();
      driver.deviceCount(Integer.getInteger("probe.devices", 1));
      driver.driverVersion(Integer.getInteger("probe.version", 12_060));
    }
    if (Boolean.getBoolean("probe.load") && driver != null) {
      for (String name : classNames()) {
        Class.forName(name);
      }
      CudaCopySettings.builder().build();
      System.out.println("probe: loaded, cuInit " + driver.calls("cuInit"));
      return;
    }
    Cuda.Availability availability = Cuda.availability();
    if (!availability.isAvailable()) {
      System.out.println("probe: unavailable: " + availability.detail());
      return;
    }
    if (driver != null) {
      copyPage();
    }
    System.out.println("probe: live " + availability.detail());
  }

  /** The classes of this package's main code. */
  private static List<String> classNames() throws IOException, URISyntaxException {
    Path folder = Path.of(Cuda.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    try (Stream<Path> files = Files.walk(folder)) {
      return files
          .map(file -> folder.relativize(file).toString())
          .filter(name -> name.endsWith(".class"))
          .map(name -> name.substring(0, name.length() - ".class".length()).replace('/', '.'))
          .filter(name -> !name.endsWith("package-info"))
          .toList();
    }
  }

  private static void copyPage() {
    try (CudaRig rig = new CudaRig(1)) {
      CudaCopyEngine engine = CudaCopyEngine.open(0);
      KVCacheTensor tensor = rig.tensor(0, 4096);
      engine.register(tensor);
      HostSlab slab = engine.allocateSlab(4096);
      CopyTicket ticket =
          engine.submit(CudaRig.whole(TransferDirection.LOAD, tensor, slab), rig.fence(0));
      if (!ticket.await(Duration.ofSeconds(20)) || ticket.failure(0) != null) {
        throw new IllegalStateException("the copy failed: " + ticket.failure(0));
      }
      engine.close(Duration.ofSeconds(20));
    }
  }
}
