package io.umbp.cuda;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Runs the PTX text of the copy kernel as it is checked in, one thread after the other, where there
 * is no device. Knows the instructions that this kernel has, and refuses others.
 */
final class PtxMachine {
  private static final Pattern INSTRUCTION =
      Pattern.compile("(?:@(!?)(%p\\d+) +)?([a-z][\\w.]*)\\s*(.*);");

  private static final Pattern OPERAND = Pattern.compile("[%$\\w.-]+");

  /** Operands are indexes of registers; constants have registers of their own. */
  private static final class Instruction {
    private final Op op;
    private final int wordBytes;
    private final long mask;
    private final int[] operands;
    private int guard = -1;
    private boolean isGuardNegated;
    private int target;

    private Instruction(Op op, int bits, List<Integer> operands) {
      this.op = op;
      wordBytes = bits / Byte.SIZE;
      mask = -1L >>> (Long.SIZE - bits);
      this.operands = operands.stream().mapToInt(i -> i).toArray();
    }
  }

  private enum Op {
    ADD,
    SUB,
    AND,
    XOR,
    SHL,
    SHR,
    MIN,
    NEG,
    NOT,
    MOV,
    SELP,
    MUL_WIDE,
    MAD_LO,
    SETP_EQ,
    SETP_NE,
    SETP_LT,
    SETP_LE,
    SETP_GT,
    SETP_GE,
    LD_TABLE,
    LD,
    ST,
    BRA,
    RET
  }

  private final Map<String, Integer> names = new HashMap<>();
  private final Map<String, Integer> labels = new HashMap<>();
  private final List<Long> initial = new ArrayList<>();
  private final Instruction[] program;
  private long[] registers = {};

  PtxMachine(String ptx) {
    List<String> lines = new ArrayList<>();
    ptx.substring(ptx.indexOf('{') + 1)
        .lines()
        .map(line -> line.replaceFirst("//.*", "").trim())
        .filter(line -> !line.isEmpty() && !line.startsWith(".") && !line.equals("}"))
        .forEach(
            line -> {
              if (line.endsWith(":")) {
                labels.put(line.substring(0, line.length() - 1), lines.size());
              } else {
                lines.add(line);
              }
            });
    program = lines.stream().map(this::parse).toArray(Instruction[]::new);
  }

  private Instruction parse(String line) {
    Matcher matcher = INSTRUCTION.matcher(line);
    if (!matcher.matches()) {
      throw new IllegalArgumentException(line);
    }
    String mnemonic = matcher.group(3);
    String type = mnemonic.substring(mnemonic.lastIndexOf('.') + 1);
    Op op = op(mnemonic, line);
    int bits = type.matches("[usb]\\d+") ? Integer.parseInt(type.substring(1)) : 1;
    if (mnemonic.startsWith("cvt.")) {
      bits = Math.min(bits, Integer.parseInt(mnemonic.split("\\.", -1)[1].substring(1)));
    }
    List<Integer> operands = new ArrayList<>();
    int target = -1;
    int offset = constant(0);
    Matcher operand = OPERAND.matcher(matcher.group(4));
    while (operand.find()) {
      String name = operand.group();
      if (op == Op.BRA) {
        target = labels.get(name);
      } else if (operand.start() > 0 && matcher.group(4).charAt(operand.start() - 1) == '+') {
        offset = constant(Long.parseLong(name));
      } else if (name.matches("-?\\d+")) {
        operands.add(constant(Long.parseLong(name)));
      } else {
        operands.add(register(name));
      }
    }
    operands.add(offset);
    Instruction instruction = new Instruction(op, bits, operands);
    instruction.target = target;
    if (matcher.group(2) != null) {
      instruction.guard = register(matcher.group(2));
      instruction.isGuardNegated = matcher.group(1).equals("!");
    }
    return instruction;
  }

  private static Op op(String mnemonic, String line) {
    if (mnemonic.matches("(ld\\.param|mov|cvt\\.u\\d+|cvta\\.to\\.global)\\.\\w+")) {
      return Op.MOV;
    }
    if (mnemonic.equals("ld.global.u64")) {
      return Op.LD_TABLE;
    }
    if (mnemonic.matches("(ld|st)(\\.v4)?\\.u\\d+")) {
      return mnemonic.startsWith("ld") ? Op.LD : Op.ST;
    }
    if (mnemonic.matches("setp\\.(eq|ne)\\.[usb]\\d+|setp\\.(lt|le|gt|ge)\\.u\\d+")) {
      return Op.valueOf("SETP_" + mnemonic.substring(5, 7).toUpperCase(Locale.ROOT));
    }
    return switch (mnemonic) {
      case "add.s32", "add.s64" -> Op.ADD;
      case "sub.s32", "sub.s64" -> Op.SUB;
      case "and.b32", "and.b64" -> Op.AND;
      case "xor.b32", "xor.b64", "xor.pred" -> Op.XOR;
      case "shl.b32", "shl.b64" -> Op.SHL;
      case "shr.u32", "shr.u64" -> Op.SHR;
      case "min.u32", "min.u64" -> Op.MIN;
      case "neg.s32", "neg.s64" -> Op.NEG;
      case "not.pred" -> Op.NOT;
      case "selp.b32", "selp.b64" -> Op.SELP;
      case "mul.wide.u32" -> Op.MUL_WIDE;
      case "mad.lo.s32" -> Op.MAD_LO;
      case "bra", "bra.uni" -> Op.BRA;
      case "ret" -> Op.RET;
      default -> throw new IllegalArgumentException(line);
    };
  }

  private int register(String name) {
    return names.computeIfAbsent(
        name,
        n -> {
          initial.add(0L);
          return initial.size() - 1;
        });
  }

  private int constant(long value) {
    int index = register("constant " + value);
    initial.set(index, value);
    return index;
  }

  void launch(int gridX, int gridY, int threads, KernelMemory memory, int rows) {
    registers = initial.stream().mapToLong(i -> i).toArray();
    set("%nctaid.x", gridX);
    set("%nctaid.y", gridY);
    set("%ntid.x", threads);
    set("umbp_copy_ranges_param_0", KernelMemory.TABLE);
    set("umbp_copy_ranges_param_1", rows);
    for (int x = 0; x < gridX; x++) {
      set("%ctaid.x", x);
      for (int y = 0; y < gridY; y++) {
        set("%ctaid.y", y);
        for (int thread = 0; thread < threads; thread++) {
          set("%tid.x", thread);
          run(memory);
        }
      }
    }
  }

  private void set(String name, long value) {
    registers[names.get(name)] = value;
  }

  private void run(KernelMemory memory) {
    int next = 0;
    while (true) {
      Instruction i = program[next++];
      if (i.guard >= 0 && (registers[i.guard] != 0) == i.isGuardNegated) {
        continue;
      }
      switch (i.op) {
        case RET -> {
          return;
        }
        case BRA -> next = i.target;
        case LD_TABLE -> registers[i.operands[0]] = tableWord(i, memory);
        case LD -> load(i, memory);
        case ST -> store(i, memory);
        default -> registers[i.operands[0]] = compute(i);
      }
    }
  }

  private long tableWord(Instruction i, KernelMemory memory) {
    long address = registers[i.operands[1]] + registers[i.operands[2]];
    KernelMemory.align(address, Long.BYTES);
    return memory.table.get((int) (address - KernelMemory.TABLE) / Long.BYTES);
  }

  /** Operands are the words, the address and its offset. */
  private void load(Instruction i, KernelMemory memory) {
    int words = i.operands.length - 2;
    long address = registers[i.operands[words]] + registers[i.operands[words + 1]];
    KernelMemory.align(address, words * i.wordBytes);
    for (int word = 0; word < words; word++) {
      long value = 0;
      for (int b = 0; b < i.wordBytes; b++) {
        value |= (memory.read(address++) & 0xffL) << (8 * b);
      }
      registers[i.operands[word]] = value;
    }
  }

  /** Operands are the address, the words and the offset. */
  private void store(Instruction i, KernelMemory memory) {
    int words = i.operands.length - 2;
    long address = registers[i.operands[0]] + registers[i.operands[words + 1]];
    KernelMemory.align(address, words * i.wordBytes);
    for (int word = 0; word < words; word++) {
      for (int b = 0; b < i.wordBytes; b++) {
        memory.write(address++, (byte) (registers[i.operands[1 + word]] >>> (8 * b)));
      }
    }
  }

  private long compute(Instruction i) {
    long mask = i.mask;
    long a = registers[i.operands[1]] & mask;
    long b = i.operands.length > 2 ? registers[i.operands[2]] & mask : 0;
    boolean isLess = Long.compareUnsigned(a, b) < 0;
    return switch (i.op) {
      case ADD -> (a + b) & mask;
      case SUB -> (a - b) & mask;
      case AND -> a & b;
      case XOR -> a ^ b;
      case SHL -> (a << b) & mask;
      case SHR -> a >>> b;
      case MIN -> isLess ? a : b;
      case NEG -> -a & mask;
      case NOT -> a ^ 1;
      case MOV -> a;
      case SELP -> registers[i.operands[3]] != 0 ? a : b;
      case MUL_WIDE -> a * b;
      case MAD_LO -> (a * b + registers[i.operands[3]]) & mask;
      case SETP_EQ -> a == b ? 1 : 0;
      case SETP_NE -> a != b ? 1 : 0;
      case SETP_LT -> isLess ? 1 : 0;
      case SETP_LE -> isLess || a == b ? 1 : 0;
      case SETP_GT -> isLess || a == b ? 0 : 1;
      case SETP_GE -> isLess ? 0 : 1;
      default -> throw new IllegalStateException(i.op.toString());
    };
  }
}
