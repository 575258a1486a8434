import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;

/** Posts each file to a URL, with the JDK's client as it is by default: it offers HTTP/2 with every request. */
public class Client {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 1; i < args.length; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(Files.readString(Path.of(args[i]))))
                    .build();
            var response = client.send(request, BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body().replace("\n", " "));
        }
    }
}
