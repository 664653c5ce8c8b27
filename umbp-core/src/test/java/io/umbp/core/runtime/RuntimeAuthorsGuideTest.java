package io.umbp.core.runtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.umbp.testkit.KVCopyEngineContract;
import io.umbp.testkit.UMBPRuntimeContract;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.DisplayName;
import org.junit.jupiter.api.Test;

class RuntimeAuthorsGuideTest {
  private static final Pattern NUMBERED = Pattern.compile("rule ([1-9]): .+");
  private static final Pattern SECTION =
      Pattern.compile("^## Rule (\\d+): .+?(?=^## |\\z)", Pattern.MULTILINE | Pattern.DOTALL);

  @Test
  void guideAndSuitesHaveTheSameNineRules() throws IOException {
    Set<Integer> nine = IntStream.rangeClosed(1, 9).boxed().collect(Collectors.toSet());
    Set<Integer> tested = rulesOf(UMBPRuntimeContract.class);
    tested.addAll(rulesOf(KVCopyEngineContract.class));
    assertEquals(nine, sections().keySet());
    assertEquals(nine, tested);
  }

  @Test
  void eachRuleOfTheGuideNamesTheSuitesThatCheckIt() throws IOException {
    Set<Integer> ofRuntimes = rulesOf(UMBPRuntimeContract.class);
    Set<Integer> ofEngines = rulesOf(KVCopyEngineContract.class);
    sections()
        .forEach(
            (rule, text) -> {
              assertEquals(ofRuntimes.contains(rule), text.contains("`UMBPRuntimeContract`"), text);
              assertEquals(ofEngines.contains(rule), text.contains("`KVCopyEngineContract`"), text);
            });
  }

  private static Map<Integer, String> sections() throws IOException {
    String guide = Files.readString(Path.of("..", "docs", "runtime-authors-guide.md"));
    Map<Integer, String> sections = new TreeMap<>();
    Matcher section = SECTION.matcher(guide);
    while (section.find()) {
      sections.put(Integer.valueOf(section.group(1)), section.group());
    }
    return sections;
  }

  /** Returns the numbers in the display names of a suite, all of which must have one. */
  private static Set<Integer> rulesOf(Class<?> suite) {
    Set<Integer> rules = new TreeSet<>();
    for (Class<?> type = suite; type != Object.class; type = type.getSuperclass()) {
      for (Method method : type.getDeclaredMethods()) {
        DisplayName name = method.getAnnotation(DisplayName.class);
        if (name != null) {
          Matcher numbered = NUMBERED.matcher(name.value());
          assertTrue(numbered.matches(), name.value());
          rules.add(Integer.valueOf(numbered.group(1)));
        } else {
          assertTrue(!method.isAnnotationPresent(Test.class), method + " has no rule");
        }
      }
    }
    return rules;
  }
}
