// Submit a job and follow it to its end with nothing but a NATS client.
//
// Requests and events are JSON as schemas/json has them.
//
//	go run . nats://127.0.0.1:4222 default tenant.default.creds my-job
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

var ends = map[string]int{
	"workload.succeeded.v1": 0, "workload.failed.v1": 1, "workload.cancelled.v1": 1,
}

type refusal struct {
	Type        string  `json:"type"`
	Field       string  `json:"field"`
	Value       string  `json:"value"`
	Expected    string  `json:"expected"`
	Retry       bool    `json:"retry"`
	RetryAfterS float64 `json:"retry_after_s"`
}

type submitted struct {
	Sequence int64 `json:"sequence"`
	Existing bool  `json:"existing"`
}

type page struct {
	NextAfter int64 `json:"next_after"`
	More      bool  `json:"more"`
	Events    []struct {
		Sequence int64 `json:"sequence"`
		Void     bool  `json:"void"`
		Event    struct {
			Type string `json:"type"`
			ID   string `json:"id"`
		} `json:"event"`
	} `json:"events"`
}

// ask sends one request; what may be repeated is, as every request here is safe to repeat.
func ask(bus *nats.Conn, tenant, verb string, body map[string]any, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for attempt := 0; attempt < 5; attempt++ {
		pause := 200 * time.Millisecond << attempt
		reply, err := bus.Request("berth.api."+tenant+"."+verb, data, 2*time.Second)
		if err != nil {
			if !passes(err) {
				return err
			}
			time.Sleep(pause)
			continue
		}
		var refused refusal
		if err := json.Unmarshal(reply.Data, &refused); err != nil {
			return err
		}
		if refused.Type != "api.refusal.v1" {
			return json.Unmarshal(reply.Data, answer)
		}
		if !refused.Retry {
			return fmt.Errorf("refused: %s is %s; right is %s",
				refused.Field, refused.Value, refused.Expected)
		}
		time.Sleep(max(pause, time.Duration(refused.RetryAfterS*float64(time.Second))))
	}
	return fmt.Errorf("nobody answered %s", verb)
}

// passes says whether a request that failed so may get an answer later.
func passes(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}

func follow(url, tenant, creds, job string) (int, error) {
	again := make(chan struct{}, 1) // filled by an event that comes live, and by a new connection
	wake := func() {
		select {
		case again <- struct{}{}:
		default:
		}
	}
	bus, err := nats.Connect(url,
		nats.UserCredentials(creds),
		nats.CustomInboxPrefix("_INBOX.tenant."+tenant),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500*time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { wake() }),
	)
	if err != nil {
		return 1, err
	}
	defer bus.Close()
	// Events that come live only say that there is something to ask for: so none is missed.
	if _, err := bus.Subscribe("berth.event."+tenant+".>", func(*nats.Msg) { wake() }); err != nil {
		return 1, err
	}
	var log page
	if err := ask(bus, tenant, "events", map[string]any{}, &log); err != nil {
		return 1, err
	}
	after := log.NextAfter
	var stored submitted
	request := map[string]any{"id": job, "expected_duration_s": 1}
	if err := ask(bus, tenant, "submit", request, &stored); err != nil {
		return 1, err
	}
	if stored.Existing {
		after = stored.Sequence - 1
	}
	for {
		var next page
		if err := ask(bus, tenant, "events", map[string]any{"after": after}, &next); err != nil {
			return 1, err
		}
		after = next.NextAfter
		for _, one := range next.Events {
			if one.Event.ID != job || one.Void {
				continue
			}
			fmt.Println(one.Sequence, one.Event.Type)
			if code, over := ends[one.Event.Type]; over {
				return code, nil
			}
		}
		if !next.More {
			select {
			case <-again:
			case <-time.After(30 * time.Second):
			}
		}
	}
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: follow URL TENANT CREDENTIALS JOB")
		os.Exit(2)
	}
	code, err := follow(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
