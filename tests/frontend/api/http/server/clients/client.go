// Posts each file to a URL, with net/http's default client.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	for _, file := range os.Args[2:] {
		body, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		response, err := http.Post(os.Args[1], "application/json", bytes.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(response.StatusCode, strings.ReplaceAll(string(answer), "\n", " "))
	}
}
