package io.umbp.cuda;

import io.umbp.api.UMBPException;
import java.lang.reflect.Field;
import jcuda.NativePointerObject;
import jcuda.Pointer;
import jcuda.driver.CUcontext;
import jcuda.driver.CUdeviceptr;
import jcuda.driver.CUstream;

/**
 * Addresses and handles as JCuda's objects, and back. JCuda has protected constructors for
 * addresses, but none that another package can use for handles: those are set by reflection, here
 * and nowhere else.
 */
final class Handles {
  private Handles() {}

  /** An address that any call takes which names memory by number: device, pinned or registered. */
  static final class Address extends CUdeviceptr {
    /** Creates an out parameter. */
    Address() {}

    Address(long address) {
      super(new CUdeviceptr(), address);
    }

    long value() {
      return getNativePointer() + getByteOffset();
    }
  }

  /** The address of host memory for calls that take a host pointer. */
  static final class HostAddress extends Pointer {
    HostAddress(long address) {
      super(address);
    }
  }

  private static final class Access {
    static final Field POINTER = open();

    private static Field open() {
      try {
        Field field = NativePointerObject.class.getDeclaredField("nativePointer");
        field.setAccessible(true);
        return field;
      } catch (ReflectiveOperationException | RuntimeException e) {
        throw new UMBPException(
            UMBPException.Reason.UNSUPPORTED,
            "raw stream and context handles need reflection on "
                + NativePointerObject.class.getName()
                + " (on the module path: --add-opens jcuda/jcuda=io.umbp.cuda): "
                + e,
            e);
      }
    }
  }

  static CUstream stream(long handle) {
    return set(new CUstream(), handle);
  }

  static CUcontext context(long handle) {
    return set(new CUcontext(), handle);
  }

  static long of(NativePointerObject object) {
    try {
      return Access.POINTER.getLong(object);
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
  }

  private static <T extends NativePointerObject> T set(T object, long handle) {
    try {
      Access.POINTER.setLong(object, handle);
    } catch (IllegalAccessException e) {
      throw new IllegalStateException(e);
    }
    return object;
  }
}
