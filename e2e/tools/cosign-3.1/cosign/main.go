// Program cosign is cosign without the plugins of clouds for keys.
package main

import (
	"log"

	"github.com/sigstore/cosign/v3/cmd/cosign/cli"
)

func main() {
	if err := cli.New().Execute(); err != nil {
		log.Fatal(err)
	}
}
