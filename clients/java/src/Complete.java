import io.grpc.ManagedChannel;
import io.grpc.netty.NettyChannelBuilder;
import java.util.Iterator;
import tetrad.v1.Inference.GenerateRequest;
import tetrad.v1.Inference.GenerateResponse;
import tetrad.v1.InferenceServiceGrpc;
import tetrad.v1.Types.SamplingParams;

/** Streams a completion: `java Complete HOST PORT PROMPT`. Knows nothing but the stubs. */
public final class Complete {
  public static void main(String[] args) {
    ManagedChannel channel = NettyChannelBuilder.forAddress(args[0], Integer.parseInt(args[1])).usePlaintext().build();
    try {
      GenerateRequest request =
          GenerateRequest.newBuilder()
              .setText(args[2])
              .setSamplingParams(SamplingParams.newBuilder().setMaxTokens(16).setTemperature(0))
              .build();
      Iterator<GenerateResponse> responses = InferenceServiceGrpc.newBlockingStub(channel).generate(request);
      while (responses.hasNext()) {
        System.out.print(responses.next().getText());
        System.out.flush();
      }
      System.out.println();
    } finally {
      channel.shutdownNow();
    }
  }
}
