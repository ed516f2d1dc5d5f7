// franz-go logs in, writes and reads; see clients.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type spec struct {
	Bootstrap, Mechanism, User, Password, Token, CA, Cert, Topic string
	Count                                                        int
	PauseS                                                       float64 `json:"pause_s"`
	ByToken                                                      bool    `json:"by_token"`
}

func main() {
	written, read, err := run()
	said := map[string]any{"written": written, "read": read}
	if err != nil {
		said = map[string]any{"error": err.Error()}
	}
	line, _ := json.Marshal(said)
	fmt.Println(string(line))
}

func run() (int, int, error) {
	var given spec
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		return 0, 0, err
	}
	options := []kgo.Opt{kgo.SeedBrokers(given.Bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner())}
	if given.CA != "" {
		pem, err := os.ReadFile(given.CA)
		if err != nil {
			return 0, 0, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: pool, ServerName: "localhost"}
		if given.Cert != "" {
			pair, err := tls.LoadX509KeyPair(given.Cert, given.Cert)
			if err != nil {
				return 0, 0, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch given.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: given.User, Pass: given.Password, IsToken: given.ByToken}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: given.User, Pass: given.Password, IsToken: given.ByToken}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: given.Token}.AsMechanism()))
	}
	// A refused login is repeated until this deadline.
	patience := time.Duration(8+given.PauseS*float64(given.Count)*2) * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	producer, err := kgo.NewClient(options...)
	if err != nil {
		return 0, 0, err
	}
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil {
		return 0, 0, err
	}
	for number := 0; number < given.Count; number++ {
		record := &kgo.Record{Topic: given.Topic, Value: []byte(strconv.Itoa(number))}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return number, 0, err
		}
		time.Sleep(time.Duration(given.PauseS * float64(time.Second)))
	}
	from := map[string]map[int32]kgo.Offset{given.Topic: {0: kgo.NewOffset().AtStart()}}
	consumer, err := kgo.NewClient(append(options, kgo.ConsumePartitions(from))...)
	if err != nil {
		return 0, 0, err
	}
	defer consumer.Close()
	found := 0
	for found < given.Count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return given.Count, found, err
		}
		found += fetches.NumRecords()
	}
	return given.Count, found, nil
}
