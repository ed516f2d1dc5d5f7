// kafkajs logs in, writes and reads; see clients.py.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const given = JSON.parse(process.argv[2])
const pause = () => new Promise((done) => setTimeout(done, 1000 * given.pause_s))

function options() {
  const found = {
    brokers: [given.bootstrap], logLevel: logLevel.NOTHING, connectionTimeout: 10000, retry: { retries: 2 },
    reauthenticationThreshold: 500,
  }
  if (given.ca) {
    found.ssl = { ca: [fs.readFileSync(given.ca)], servername: 'localhost' }
    if (given.cert) found.ssl = { ...found.ssl, cert: fs.readFileSync(given.cert), key: fs.readFileSync(given.cert) }
  }
  if (given.mechanism === 'OAUTHBEARER') {
    found.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: given.token }) }
  } else if (given.mechanism) {
    found.sasl = { mechanism: given.mechanism.toLowerCase(), username: given.user, password: given.password }
  }
  return found
}

async function run() {
  const kafka = new Kafka(options())
  const producer = kafka.producer()
  await producer.connect()
  for (let number = 0; number < given.count; number++) {
    await producer.send({ topic: given.topic, acks: -1, messages: [{ value: String(number), partition: 0 }] })
    await pause()
  }
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `of-${given.topic}` })
  await consumer.connect()
  await consumer.subscribe({ topics: [given.topic], fromBeginning: true })
  let read = 0
  await new Promise((done, failed) => {
    setTimeout(() => failed(new Error(`read ${read} of ${given.count} messages`)), 20000).unref()
    consumer.run({ eachMessage: async () => { if (++read === given.count) done() } })
  })
  await consumer.disconnect()
  return { written: given.count, read }
}

run().catch((error) => ({ error: `${error.name}: ${error.message}` })).then((said) => {
  console.log(JSON.stringify(said))
  process.exit(0)
})
