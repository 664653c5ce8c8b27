package io.umbp.core;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.Architectures.layeredArchitecture;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;

import com.tngtech.archunit.core.importer.ImportOption;
import com.tngtech.archunit.junit.AnalyzeClasses;
import com.tngtech.archunit.junit.ArchTest;
import com.tngtech.archunit.lang.ArchRule;

/** The rooms of core: each class in one, imports one way. */
@AnalyzeClasses(packages = "io.umbp", importOptions = ImportOption.DoNotIncludeTests.class)
class RoomsTest {
  private static final String CORE = "io.umbp.core.";

  @ArchTest
  static final ArchRule everyClassIsInARoom =
      classes()
          .that()
          .resideInAPackage("io.umbp.core..")
          .should()
          .resideInAnyPackage(
              CORE + "identity",
              CORE + "layout",
              CORE + "request",
              CORE + "pool",
              CORE + "tier",
              CORE + "runtime",
              CORE + "connector",
              CORE + "bridge");

  @ArchTest
  static final ArchRule importsRunOneWay =
      layeredArchitecture()
          .consideringOnlyDependenciesInLayers()
          .withOptionalLayers(true)
          .layer("api")
          .definedBy("io.umbp.api..")
          .layer("layout, request")
          .definedBy(CORE + "layout", CORE + "request")
          .layer("identity")
          .definedBy(CORE + "identity")
          .layer("pool, tier")
          .definedBy(CORE + "pool", CORE + "tier")
          .layer("runtime")
          .definedBy(CORE + "runtime")
          .layer("bridge, connector")
          .definedBy(CORE + "bridge", CORE + "connector")
          .whereLayer("api")
          .mayNotAccessAnyLayer()
          .whereLayer("layout, request")
          .mayOnlyAccessLayers("api")
          .whereLayer("identity")
          .mayOnlyAccessLayers("api", "layout, request")
          .whereLayer("pool, tier")
          .mayOnlyAccessLayers("api", "layout, request", "identity")
          .whereLayer("runtime")
          .mayOnlyAccessLayers("api", "layout, request", "identity", "pool, tier")
          .whereLayer("bridge, connector")
          .mayNotBeAccessedByAnyLayer();

  @ArchTest
  static final ArchRule roomsHaveNoCycles =
      slices().matching(CORE + "(*)..").should().beFreeOfCycles();

  @ArchTest
  static final ArchRule coreSeesNoTestkitAndNoBench =
      noClasses()
          .that()
          .resideInAPackage("io.umbp.core..")
          .should()
          .dependOnClassesThat()
          .resideInAnyPackage("io.umbp.testkit..", "io.umbp.bench..");
}
