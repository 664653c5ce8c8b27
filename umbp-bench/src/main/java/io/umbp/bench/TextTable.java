package io.umbp.bench;

import java.util.ArrayList;
import java.util.List;

/** Rows of text in columns as wide as they need to be; numbers stand at the right. */
final class TextTable {
  private static final String GAP = "  ";

  private final List<String[]> rows = new ArrayList<>();

  TextTable(String... heading) {
    rows.add(heading);
  }

  void add(String... row) {
    rows.add(row);
  }

  /** The lines, the heading first. */
  List<String> lines() {
    int columns = rows.get(0).length;
    int[] width = new int[columns];
    for (String[] row : rows) {
      for (int i = 0; i < columns; i++) {
        width[i] = Math.max(width[i], row[i].length());
      }
    }
    List<String> lines = new ArrayList<>();
    for (String[] row : rows) {
      StringBuilder line = new StringBuilder();
      for (int i = 0; i < columns; i++) {
        String space = " ".repeat(width[i] - row[i].length());
        line.append(GAP).append(isNumeric(i) ? space + row[i] : row[i] + space);
      }
      lines.add(line.toString().stripTrailing());
    }
    return lines;
  }

  private boolean isNumeric(int column) {
    return rows.stream().skip(1).allMatch(row -> row[column].matches("[0-9,]+|-"));
  }
}
